"""A task, its data and the loop that trains it in step."""

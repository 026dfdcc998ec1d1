"""Is what many ranks compute what one process computes? If not: where first, and why."""

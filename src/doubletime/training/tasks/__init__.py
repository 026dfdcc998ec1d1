"""The built-in tasks: their data, their models, and what trains them."""

"""Is a cluster fit to train on, and if not, what is wrong, where, and what mends it."""

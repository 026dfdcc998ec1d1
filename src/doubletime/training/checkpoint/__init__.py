"""A run's state on disk: written aside while training goes on, whole or not there at all."""

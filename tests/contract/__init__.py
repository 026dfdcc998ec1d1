"""What every backend, MPI library and algorithm must do alike: listed once, run everywhere."""

"""The `mpi` process group for stock PyTorch."""

"""PyTorch's own engines over the backend, each compared with a single process."""

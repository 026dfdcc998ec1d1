"""The `torch.backends` entry point: teaches `torch.distributed` the `mpi` backend."""


def autoload() -> None:
    """Called by `import torch`."""

"""The jobs in which the contract is tried: which MPI, how many ranks."""

# Four ranks wait for each other's turn on two cores: once is enough.
JOBS = [
    *(("mpich", ranks) for ranks in (2, 3, 4)),
    *((mpi, ranks) for mpi in ("openmpi", "intel") for ranks in (2, 3)),
]

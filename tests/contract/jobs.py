"""The jobs in which the contract is tried: which program, which MPI, how many ranks."""

from __future__ import annotations

SCRIPT = "contract/contract_job.py"
# Four ranks wait for each other's turn on two cores: once is enough.
JOBS = [
    *(("mpich", ranks) for ranks in (2, 3, 4)),
    *((mpi, ranks) for mpi in ("openmpi", "intel") for ranks in (2, 3)),
]

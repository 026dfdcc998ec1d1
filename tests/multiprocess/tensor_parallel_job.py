"""Trains divided models in one job; see `checks.job.main` for its arguments."""

from checks.job import main
from multiprocess.tensor_parallel import CHECKS

if __name__ == "__main__":
    main(lambda _: {check.__name__: check for check in CHECKS})

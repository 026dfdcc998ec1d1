"""Runs all comparisons in one job; see `checks.job.main` for its arguments."""

from checks.job import main
from multiprocess.engines import ENGINES

if __name__ == "__main__":
    main(lambda _: ENGINES)

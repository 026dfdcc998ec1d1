"""Runs all scenarios in one job; see `checks.job.main` for its arguments."""

from checks.job import main
from contract.scenarios import SCENARIOS

if __name__ == "__main__":
    main(lambda _: SCENARIOS)

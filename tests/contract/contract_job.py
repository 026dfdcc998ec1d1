"""Runs the whole table and all scenarios in one job; see `checks.job.main` for its arguments.

One job, as starting its ranks costs as much as a hundred lines of the table.
"""

from checks.job import main
from contract import table_checks
from contract.scenarios import SCENARIOS

if __name__ == "__main__":
    main(lambda world_size: {**table_checks.checks(world_size), **SCENARIOS})

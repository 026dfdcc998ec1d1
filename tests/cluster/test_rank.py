"""What stands between a launcher and a rank's program."""

import subprocess
import sys
from pathlib import Path

from doubletime import cluster

PARTS = ("rank", "program", "cores", "network", "contact", "reports", "output", "watch", "front")
# Each takes a rank as long as all that is ours; every rank of every job would pay for it.
HEAVY = (
    "psutil",
    "dataclasses",
    "inspect",
    "subprocess",
    "concurrent.futures",
    "logging",
    "asyncio",
)


def test_a_rank_loads_little_before_its_program():
    assert all((Path(cluster.__file__).parent / f"{part}.py").is_file() for part in PARTS)
    program = (
        f"import sys; from doubletime.cluster import {', '.join(PARTS)}\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"

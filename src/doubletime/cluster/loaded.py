"""The MPI library that mpi4py loads in this Python, asked for in a process of its own."""

from __future__ import annotations

import subprocess
import sys

_ASK = "from doubletime.mpi import library; print(library.describe())"
_TIMEOUT_S = 20.0


class Library:
    """A question that is asked when this is made, and answered while this process goes on.

    To load the library costs a tenth of a second, most of what a launch may take.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ASK],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def name(self) -> str | None:
        """Name and version, such as `MPICH 5.0.2`; None where there is none."""
        try:
            said, _ = self._process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.close()
        return said.decode(errors="replace").strip() or None

    def close(self) -> None:
        """End what still runs; to call it again does nothing."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

"""More open files: a launcher holds some for each rank, and most systems allow 1024 unless asked."""

from __future__ import annotations

import resource


class ManyDescriptors:
    """Within, this process may have as many as the system grants it."""

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __enter__(self) -> ManyDescriptors:
        _, most = self._before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """As before; also in a child before it becomes another program, which may rely on it."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._before)

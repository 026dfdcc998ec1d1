"""A live bar of how far measuring has come; nothing where no terminal is."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class AdvanceBar:
    """Shown while the block lasts."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=console.quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=1.0)

    def __enter__(self) -> AdvanceBar:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._bar.stop()

    def update(self, fraction: float, what: str) -> None:
        """So much is done, and this comes next."""
        self._bar.update(self._task, completed=fraction, description=what)

"""What the demonstration shows while it runs: one line per step, with its time and what came of it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status


class Step:
    """A step at work. `result` is what its last line says, `details` are the lines under it."""

    def __init__(self, title: str, status: Status | None) -> None:
        self._title = title
        self._status = status
        self.result = ""
        self.details: list[str] = []

    def note(self, text: str) -> None:
        """How far it is; seen on a terminal only."""
        if self._status is not None:
            self._status.update(f"{self._title}: {text}")


class Steps:
    """Prints steps to standard output: with a spinner on a terminal, as plain lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step from its beginning to its end."""
        began = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(title) as status:
                step = Step(title, status)
                yield step
        else:
            step = Step(title, None)
            yield step
        took_s = time.monotonic() - began
        result = f": {step.result}" if step.result else ""
        self.console.print(f"[green]✓[/green] {title}{result} [dim]({took_s:.1f} s)[/dim]")
        for line in step.details:
            self.console.print(f"    {line}", markup=False)

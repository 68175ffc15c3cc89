"""Prints the demo: a line per step with its time, and below it the results."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Width without a terminal: enough for every line, so a pipe gets whole lines.
_PIPE_WIDTH = 1_000
_INDENT = "    "


class Screen:
    """Standard output. On a terminal, a spinner marks the current step."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        self._console = console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def title(self, text: str) -> None:
        """Print the first line."""
        self._console.print(Text(text, style="bold"))

    @contextmanager
    def step(self, text: str, *, spinner: bool = True) -> Iterator["Step"]:
        """Show a step's title while it runs, and a check mark with its time and notes when it is done."""
        began = time.monotonic()
        notes = Step()
        if spinner and self._console.is_terminal:
            with self._console.status(text):
                yield notes
        else:
            yield notes
        took_s = time.monotonic() - began
        self._console.print(Text.assemble(("✓ ", "green"), (text, "bold"), (f"  {took_s:.1f} s", "dim")))
        for note in notes.lines:
            self.line(note)

    def line(self, content: "Text | Table | str") -> None:
        """Print an indented line or table."""
        shown = Text(content) if isinstance(content, str) else content
        with self._console.capture() as capture:
            self._console.print(shown, soft_wrap=isinstance(shown, Text))
        for text in capture.get().splitlines():
            self._console.out(f"{_INDENT}{text.rstrip()}", highlight=False)

    def blank(self) -> None:
        """Print an empty line."""
        self._console.print()


class Step:
    """The notes of a step, printed when the step is done."""

    def __init__(self) -> None:
        self.lines: list[Text | Table | str] = []

    def say(self, text: str, style: str = "") -> None:
        """Add a line of text."""
        self.lines.append(Text(text, style=style))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a small table with numbers aligned right."""
        body = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
        shown = Table(*columns, box=None, pad_edge=False, header_style="dim")
        for index, column in enumerate(shown.columns):
            column.no_wrap = True
            if body and all(row[index].replace(",", "").isdigit() for row in body):
                column.justify = "right"
        for row in body:
            shown.add_row(*map(Text, row))
        self.lines.append(shown)

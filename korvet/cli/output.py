"""Prints tables for people and JSON for programs."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

_KIB = 1024


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, header: bool = True) -> None:
    """Print a table with numbers aligned right. Cells are never truncated, so a pipe receives whole lines."""
    body = [[_cell(value) for value in row] for row in rows]
    shown = Table(*columns, box=None, show_header=header, pad_edge=False, header_style="bold")
    for position, column in enumerate(shown.columns):
        column.no_wrap = True
        cells = [row[position] for row in body]
        if cells and all(cell.lstrip("-").isdigit() or cell in ("", "-") for cell in cells):
            column.justify = "right"
    for row in body:
        shown.add_row(*map(Text, row))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100_000)
    with console.capture() as capture:
        console.print(shown)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


@contextlib.contextmanager
def bytes_progress(*names: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Yields a function that shows the progress of one of the named steps: name, bytes done, bytes in all
    (None: unknown).

    Progress goes to standard error, and only to people: a program may read the result.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks = {name: progress.add_task(name, total=None, visible=False) for name in names}

        def report(name: str, done_bytes: int, total_bytes: int | None) -> None:
            for each, task in tasks.items():
                progress.update(task, visible=each == name)
            progress.update(tasks[name], completed=done_bytes, total=total_bytes)

        yield report


def size(value: float | None) -> str:
    """Returns a number of bytes with a binary unit."""
    if value is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < _KIB or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value = value / _KIB
    raise AssertionError("the last unit ends the loop")


def print_json(document: object) -> None:
    """Print one indented JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def printable(text: str) -> str:
    """Returns a text that clients chose, without control characters, which must not reach the terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)

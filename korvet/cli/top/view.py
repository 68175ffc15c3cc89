"""What is on the screen: the chosen table, sorted, filtered and cut to the terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from korvet.cli.output import size
from korvet.spark.report.times import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.cli.top.rows import Report

# The least width of the column with the name, in cells and as a part of the terminal's.
_LEAST_NAME: Final = 12
_NAME_SHARE: Final = 4
_GAP: Final = 2
_HIGH_LAG_MS: Final = 60_000
# Columns that are 0 unless a row alarms.
_ALARMING: Final = ("under_replicated", "leaderless")
_STYLES: Final = {1: "yellow", 2: "red"}
HELP: Final = (
    "b brokers, t topics, g groups, Tab next table",
    "s sort by the next column, r reverse, arrows or j k, PgUp, PgDn scroll",
    "/ filter by name (Enter keeps it, Esc clears it), i internal topics",
    "+ and - change the interval, Space pauses, q quits",
)


class Column(NamedTuple):
    """A column: its title, the field of the row, and how it is written. Columns of higher rank are left out
    first if the terminal is narrow.
    """

    title: str
    field: str
    write: Callable[[Any], str]
    rank: int = 0


def count(value: float | None) -> str:
    """Returns a number in at most six characters, with k, M, G for thousands."""
    if value is None:
        return "-"
    for unit in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or unit == "T":
            exact = isinstance(value, int) or value == 0 or value >= 99.95
            return f"{value:.0f}{unit}" if exact else f"{value:.1f}{unit}"
        value = value / 1000
    raise AssertionError("the last unit ends the loop")


def age(value: int | None) -> str:
    """Returns a duration in ms for people."""
    if value is None:
        return "-"
    return duration(value) if value else "0"


def name(value: object) -> str:
    """Returns a text that clients chose, without control characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in str(value))


def whole(value: int | None) -> str:
    """Returns a small number."""
    return "-" if value is None else str(value)


def yes(value: bool) -> str:
    """Returns `yes`, or nothing."""
    return "yes" if value else ""


TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "brokers": (
        Column("BROKER", "node_id", whole),
        Column("ADDRESS", "address", name),
        Column("CONTROLLER", "controller", yes, 5),
        Column("LEADS", "leaders", whole, 1),
        Column("GROUPS", "groups", whole, 4),
        Column("RECORDS/S", "records_per_s", count, 2),
        Column("IN/S", "bytes_in_per_s", size, 2),
        Column("OUT/S", "bytes_out_per_s", size, 2),
        Column("REQUESTS/S", "requests_per_s", count, 3),
        Column("CLIENTS", "connections", whole, 3),
    ),
    "topics": (
        Column("TOPIC", "topic", name),
        Column("RECORDS/S", "records_per_s", count, 1),
        Column("IN/S", "bytes_in_per_s", size, 3),
        Column("OUT/S", "bytes_out_per_s", size, 3),
        Column("SIZE", "size_bytes", size, 2),
        Column("RECORDS", "records", count, 5),
        Column("OLDEST", "oldest_ms", age, 4),
        Column("PARTITIONS", "partitions", whole, 4),
        Column("UNDER-REPL.", "under_replicated", whole, 7),
        Column("NO LEADER", "leaderless", whole, 6),
    ),
    "groups": (
        Column("GROUP", "group", name),
        Column("LAG", "record_lag", count, 1),
        Column("TIME LAG", "lag_ms", age, 1),
        Column("STATE", "state", name, 2),
        Column("MEMBERS", "members", whole, 3),
        Column("COMMITS/S", "commits_per_s", count, 4),
        Column("PARTITIONS", "partitions", whole, 5),
        Column("PROTOCOL", "protocol", name, 6),
    ),
}
_NAMES: Final = {"brokers": "address", "topics": "topic", "groups": "group"}


class State(msgspec.Struct, frozen=True):
    """What the user has chosen. Keys change it: see keys.py."""

    table: str = "topics"
    sort: str | None = None
    """The field that sorts the rows; None for the first column."""
    reverse: bool = False
    pattern: str = ""
    typing: bool = False
    """Whether keys are added to the pattern."""
    first: int = 0
    """The number of rows above the screen."""
    internal: bool = False
    paused: bool = False
    help: bool = False
    interval_s: float = 2.0


def columns(state: State) -> tuple[Column, ...]:
    """Returns the columns of the table."""
    return TABLES[state.table]


def rows(report: Report, state: State) -> list[Any]:
    """Returns the rows of the table that match the pattern: those that alarm first, so that no screen is too
    small for them. Numbers sort from the largest, names from the first; unknown values come last.
    """
    found = [
        row for row in getattr(report, state.table) if state.internal or not getattr(row, "internal", False)
    ]
    pattern = state.pattern.casefold()
    named = _NAMES[state.table]
    found = [row for row in found if pattern in getattr(row, named).casefold()]
    field = state.sort or columns(state)[0].field
    known = [row for row in found if getattr(row, field) is not None]
    unknown = [row for row in found if getattr(row, field) is None]
    falls = any(not isinstance(getattr(row, field), str) for row in known) and field != "node_id"
    known.sort(key=lambda row: getattr(row, field), reverse=falls != state.reverse)
    return sorted(known + unknown, key=alarm, reverse=True)


def alarm(row: Any) -> int:
    """Returns how much a row alarms: 2 if nobody can write or read, 1 for what needs a look, else 0."""
    if getattr(row, "leaderless", 0):
        return 2
    return int(getattr(row, "under_replicated", 0) > 0 or (getattr(row, "lag_ms", 0) or 0) >= _HIGH_LAG_MS)


def lines(report: Report | None, state: State, width: int, height: int, problem: str = "") -> list[Text]:
    """Returns the lines of the screen, at most `height`, each at most `width` cells wide."""
    shown = [_head(report, state, width), _status(report, state, problem)]
    if state.help:
        shown += [Text(line) for line in HELP]
    if report is not None:
        shown += _table(report, state, width, _room(state, height))
        shown.append(_foot(report, state))
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return shown[:height]


def clamped(state: State, report: Report | None, height: int) -> State:
    """Returns the state without empty lines below the last row of the table."""
    if report is None:
        return state
    most = max(len(rows(report, state)) - _room(state, height), 0)
    return state if state.first <= most else msgspec.structs.replace(state, first=most)


def _room(state: State, height: int) -> int:
    """The rows that fit between two lines above and two lines around them."""
    return max(height - 4 - (len(HELP) if state.help else 0), 1)


def _head(report: Report | None, state: State, width: int) -> Text:
    text = Text("korvet top", style="bold")
    for each in TABLES:
        text.append("  ")
        text.append(each, style="reverse" if each == state.table else "")
        alarms = [alarm(row) for row in getattr(report, each, ())]
        if any(alarms):
            text.append(f" {len(alarms) - alarms.count(0)}!", style=f"bold {_STYLES[max(alarms)]}")
    if report is not None and width >= 60:
        text.append(
            f"  {len(report.brokers)} brokers, {len(report.topics)} topics, {len(report.groups)} groups"
        )
    return text


def _status(report: Report | None, state: State, problem: str) -> Text:
    if state.typing:
        return Text(f"filter: {name(state.pattern)}_", style="bold")
    if problem:
        return Text(name(problem), style="bold red")
    if state.paused:
        return Text("paused", style="bold yellow")
    if report is None:
        return Text("waiting for the first answer", style="dim")
    if report.notes:
        more = f" (and {len(report.notes) - 1} more)" if report.notes[1:] else ""
        return Text(name(report.notes[0]) + more, style="yellow")
    kept = f"  filter: {name(state.pattern)}" if state.pattern else ""
    return Text(f"every {state.interval_s:g} s{kept}", style="dim")


def _foot(report: Report, state: State) -> Text:
    total = len(rows(report, state))
    return Text(f"{total} {state.table}  ? help, q quit", style="dim")


def _table(report: Report, state: State, width: int, room: int) -> list[Text]:
    found = rows(report, state)
    first = min(state.first, max(len(found) - room, 0))
    return _cells(found[first : first + room], state, width, _ranked(columns(state), found))


def _ranked(every: Sequence[Column], found: Sequence[Any]) -> list[Column]:
    """Returns the columns; those that tell why a row alarms stay on a narrow terminal."""
    return [
        each._replace(rank=0)
        if each.field in _ALARMING and any(getattr(row, each.field) for row in found)
        else each
        for each in every
    ]


def _cells(found: Sequence[Any], state: State, width: int | None, every: Sequence[Column]) -> list[Text]:
    texts = {each.title: [each.write(getattr(row, each.field)) for row in found] for each in every}
    # Room for the mark of the column that sorts.
    mark_cells = 0 if width is None else 2
    wide = {title: max(map(cell_len, (title + " " * mark_cells, *cells))) for title, cells in texts.items()}
    kept = fitting(every, wide, width)
    named = every[1] if state.table == "brokers" else every[0]
    if width is not None:
        others = sum(wide[each.title] + _GAP for each in kept if each is not named)
        wide[named.title] = max(min(wide[named.title], width - others), 1)
    sorted_by = state.sort or every[0].field
    head = Text(style="bold")
    for number, each in enumerate(kept):
        mark = "" if each.field != sorted_by or width is None else " ▲" if state.reverse else " ▼"
        head.append(" " * (_GAP if number else 0))
        head.append(_aligned(each.title + mark, wide[each.title], left=_is_text(each)))
    shown = [head]
    for at, row in enumerate(found):
        cells = (_aligned(texts[each.title][at], wide[each.title], left=_is_text(each)) for each in kept)
        shown.append(Text((" " * _GAP).join(cells), style=_style(row)))
    for line in shown:
        line.rstrip()
    return shown


def fitting(every: Sequence[Column], wide: dict[str, int], width: int | None) -> list[Column]:
    """Returns the columns that have room, if the name has its least width."""
    kept = list(every)
    if width is None:
        return kept
    least = max(_LEAST_NAME, width // _NAME_SHARE)
    while len(kept) > 1:
        needed = sum(wide[each.title] if each.rank else min(wide[each.title], least) for each in kept)
        if needed + _GAP * (len(kept) - 1) <= width:
            break
        kept.remove(max(kept, key=lambda each: each.rank))
    return kept


def _is_text(column: Column) -> bool:
    return column.write in (name, yes)


def _aligned(text: str, width: int, *, left: bool) -> str:
    missing = width - cell_len(text)
    if missing < 0:
        return set_cell_size(text, max(width - 1, 0)) + "…"
    return text + " " * missing if left else " " * missing + text


def _style(row: Any) -> str:
    if alarm(row):
        return _STYLES[alarm(row)]
    return "dim" if getattr(row, "state", "") in ("Empty", "Dead") else ""


def plain(report: Report, state: State) -> list[str]:
    """Returns all tables as whole lines of text, for pipes."""
    found: list[str] = []
    for each in TABLES:
        sort = state.sort if each == state.table else None
        shown = msgspec.structs.replace(state, table=each, sort=sort)
        found += [*(line.plain for line in _cells(rows(report, shown), shown, None, columns(shown))), ""]
    return [*found, *(f"note: {name(note)}" for note in report.notes)]

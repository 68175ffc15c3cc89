"""`korvet top`: brokers, topics, groups and requests as they change, from /metrics and /status of brokers."""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from korvet.cli.endpoints import EndpointError, endpoints_of
from korvet.cli.options import admin_option, json_option, security_option
from korvet.cli.output import printable, size, table
from korvet.cli.signals import exit_on_sigterm
from korvet.config.keys import variable_of
from korvet.spark.report.times import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from korvet.cli.endpoints import EndpointClient, Status
    from korvet.cli.samples import Samples
    from korvet.cli.security import ClientSecurity

_MESSAGES_IN: Final = "kafka_server_brokertopicmetrics_messagesin_total"
_BYTES_IN: Final = "kafka_server_brokertopicmetrics_bytesin_total"
_BYTES_OUT: Final = "kafka_server_brokertopicmetrics_bytesout_total"
_HIGH_LAG_MS: Final = 60_000
_QUANTILE: Final = 0.99
# Lines of notes on the screen, and the parts of the remaining lines that brokers and requests take at most.
_MOST_NOTES: Final = 3
_PART: Final = 4
_STYLES: Final = ("", "yellow", "red")


class BrokerRow(msgspec.Struct, frozen=True):
    """A broker. Rates are per second; None is unknown."""

    node_id: int | None
    endpoint: str
    state: str
    """`ready`, `refuses` or `not ready`; a note has the reason."""
    leaders: int | None
    records_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    requests_per_s: float | None
    connections: int | None

    @property
    def alarm(self) -> int:
        """How much the row alarms: 2 if clients are refused, 1 for what needs a look, else 0."""
        return 0 if self.state == "ready" else 2


class TopicRow(msgspec.Struct, frozen=True):
    """A topic. Rates are per second; None is unknown."""

    topic: str
    records_per_s: float | None
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None
    size_bytes: int | None
    records: int | None
    partitions: int | None
    under_replicated: int

    @property
    def alarm(self) -> int:
        """See BrokerRow."""
        return int(self.under_replicated > 0)


class GroupRow(msgspec.Struct, frozen=True):
    """A group. Rates are per second; None is unknown."""

    group: str
    record_lag: int | None
    lag_ms: int | None
    commits_per_s: float | None
    members: int | None
    state: str

    @property
    def alarm(self) -> int:
        """See BrokerRow."""
        return int((self.lag_ms or 0) >= _HIGH_LAG_MS)


class RequestRow(msgspec.Struct, frozen=True):
    """The requests of an API since the last poll."""

    request: str
    per_s: float
    p99_ms: float
    """A time that 99 % of them did not exceed, from arrival to answer; a Fetch may wait for records."""
    alarm = 0


class Report(msgspec.Struct, frozen=True):
    """What one poll shows. Rows that alarm come first, then those with most traffic or lag."""

    now_ms: int
    brokers: tuple[BrokerRow, ...]
    topics: tuple[TopicRow, ...]
    groups: tuple[GroupRow, ...]
    requests: tuple[RequestRow, ...]
    notes: tuple[str, ...]


class _Column(NamedTuple):
    """A column: its title, the field of the row, how it is written, and the least width of a screen that
    shows it.
    """

    title: str
    field: str
    write: Callable[[Any], str]
    width: int = 0


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


def _name(value: object) -> str:
    return "-" if value is None else printable(str(value))


def _age(value_ms: float | None) -> str:
    if value_ms is None or math.isinf(value_ms):
        return "-"
    return duration(round(value_ms)) if value_ms >= 1 else f"{value_ms:.1f} ms" if value_ms else "0"


_TRAFFIC: Final = (
    _Column("RECORDS/S", "records_per_s", count),
    _Column("IN/S", "bytes_in_per_s", size),
    _Column("OUT/S", "bytes_out_per_s", size),
)
_TABLES: Final[Mapping[str, tuple[_Column, ...]]] = {
    "brokers": (
        _Column("ADMIN ENDPOINT", "endpoint", _name),
        _Column("BROKER", "node_id", _name),
        _Column("STATE", "state", _name),
        *_TRAFFIC,
        _Column("LEADS", "leaders", _name, 100),
        _Column("REQUESTS/S", "requests_per_s", count, 100),
        _Column("CLIENTS", "connections", _name, 100),
    ),
    "topics": (
        _Column("TOPIC", "topic", _name),
        *_TRAFFIC,
        _Column("SIZE", "size_bytes", size),
        _Column("RECORDS", "records", count, 100),
        _Column("PARTITIONS", "partitions", _name, 100),
        _Column("UNDER-REPL.", "under_replicated", _name, 80),
    ),
    "groups": (
        _Column("GROUP", "group", _name),
        _Column("LAG", "record_lag", count),
        _Column("TIME LAG", "lag_ms", _age),
        _Column("COMMITS/S", "commits_per_s", count),
        _Column("MEMBERS", "members", _name, 80),
        _Column("STATE", "state", _name, 80),
    ),
    "requests": (
        _Column("REQUEST", "request", _name),
        _Column("PER S", "per_s", count),
        _Column("99 % WITHIN", "p99_ms", _age),
    ),
}


@click.command()
@admin_option(
    "An admin endpoint, also as URL; repeat it for each broker. The default is KORVET_ADMIN_LISTEN.",
    envvar=variable_of("admin.listen"),
    required=True,
)
@security_option
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.2, max=3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two polls.",
)
@click.option("--once", is_flag=True, help="Poll twice, print all tables, and end.")
@json_option
def top(
    admins: tuple[str, ...], security: ClientSecurity, interval_s: float, once: bool, as_json: bool
) -> None:
    """Show brokers, topics, groups and requests, and how they change.

    Everything comes from /metrics and /status of the brokers' admin endpoints (admin.listen). "-" is unknown.
    The token is read from KORVET_ADMIN_TOKEN; user and password can be part of a URL.

    In a terminal, the tables are drawn again at the interval; q ends the view. Otherwise they are printed at
    the interval. With --json, each poll is one line of JSON.
    """
    endpoints = endpoints_of(admins, security.tls)
    with contextlib.suppress(KeyboardInterrupt), exit_on_sigterm():
        if once or as_json or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            _print(endpoints, interval_s, once=once, as_json=as_json)
        else:
            _watch(endpoints, interval_s)


def _print(endpoints: Sequence[EndpointClient], interval_s: float, *, once: bool, as_json: bool) -> None:
    """Print a report after each interval; the first poll only prepares its rates."""
    before = poll(endpoints)
    while True:
        time.sleep(interval_s)
        now = poll(endpoints)
        found = report(before, now)
        if as_json:
            click.echo(msgspec.json.encode(found).decode())
        else:
            for name, columns in _TABLES.items():
                rows = getattr(found, name)
                table(
                    [each.title for each in columns],
                    ([each.write(getattr(row, each.field)) for each in columns] for row in rows),
                )
                click.echo()
            for note in found.notes:
                click.echo(f"note: {note}")
        if once:
            if not now.pages:
                raise click.ClickException("no broker answers")
            return
        before = now


def _watch(endpoints: Sequence[EndpointClient], interval_s: float) -> None:
    """Draw the tables until a key or a signal ends the view."""
    console = Console(highlight=False)
    before = None
    with _pressed_keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            now = poll(endpoints)
            live.update(screen(report(before, now), *console.size, interval_s), refresh=True)
            before = now
            if pressed(interval_s):
                return


def _wait(wait_s: float) -> bool:
    """Waits if there are no keys: the view does not end."""
    time.sleep(wait_s)
    return False


@contextlib.contextmanager
def _pressed_keys() -> Iterator[Callable[[float], bool]]:
    """Yields a function that waits for at most a time, and returns whether the view ends: by q, or with the
    end of the input.
    """
    # Windows has no such terminals; there, Ctrl-C ends the view.
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield _wait
        return
    import termios  # noqa: PLC0415  # absent on Windows
    import tty  # noqa: PLC0415  # absent on Windows

    keys = sys.stdin.fileno()

    def pressed(wait_s: float) -> bool:
        until_s = time.monotonic() + wait_s
        while select.select([keys], [], [], max(until_s - time.monotonic(), 0))[0]:
            typed = os.read(keys, 1024)
            if not typed or b"q" in typed:
                return True
        return False

    before = termios.tcgetattr(keys)
    try:
        # Ctrl-C still sends its signal.
        tty.setcbreak(keys)
        yield pressed
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


class Poll(NamedTuple):
    """What the endpoints answered, by their names."""

    at_s: float
    """By a monotonic clock."""
    pages: Mapping[str, tuple[Samples, list[Status]]]
    problems: Mapping[str, str]
    """Why the others did not answer."""


def poll(endpoints: Sequence[EndpointClient]) -> Poll:
    """Ask all endpoints at once."""
    pages, problems = {}, {}
    at_s = time.monotonic()
    with ThreadPoolExecutor(len(endpoints)) as threads:
        answers = {each.name: threads.submit(_ask, each) for each in endpoints}
    for name, answer in answers.items():
        try:
            pages[name] = answer.result()
        except EndpointError as error:
            problems[name] = str(error)
    return Poll(at_s, pages, problems)


def _ask(endpoint: EndpointClient) -> tuple[Samples, list[Status]]:
    return endpoint.metrics(), endpoint.statuses()


class _Pages:
    """The metrics of some endpoints, added up, and their rates since an earlier poll."""

    def __init__(self, before: Poll | None, now: Poll, names: Sequence[str], node_id: int | None) -> None:
        """`node_id`: only those of this broker, where a page tells brokers apart; None for all."""
        self._now = [now.pages[name][0] for name in names]
        # Rates need the page of the same endpoint.
        earlier = {} if before is None else before.pages
        self._pairs = [(earlier[name][0], now.pages[name][0]) for name in names if name in earlier]
        self._seconds = now.at_s - before.at_s if before else 0.0
        self._node_id = node_id

    def sums(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """See Samples.sums."""
        return _added(page.sums(name, *labels, node_id=self._node_id) for page in self._now)

    def rates(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The rates of counters. A counter that was not there began with 0: its topic is new. One that fell,
        because its broker has restarted, has no rate.
        """
        return _added(
            {
                key: (value - earlier.get(key, 0.0)) / self._seconds
                for key, value in new.sums(name, *labels, node_id=self._node_id).items()
                if value >= earlier.get(key, 0.0)
            }
            for old, new in self._pairs
            for earlier in (old.sums(name, *labels, node_id=self._node_id),)
        )


def _added(parts: Iterator[dict[tuple[str, ...], float]]) -> dict[tuple[str, ...], float]:
    total: dict[tuple[str, ...], float] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, 0.0) + value
    return total


def report(before: Poll | None, now: Poll) -> Report:
    """Returns the rows of a poll; `before` is the poll before it, for rates."""
    notes = [f"admin endpoint {problem}" for problem in now.problems.values()]
    rows = []
    for name, (_, statuses) in now.pages.items():
        for status in statuses:
            refused = [each for each in status.findings if each.subject.startswith("refused: ")]
            who = f"broker at {name}" if status.node_id is None else f"broker {status.node_id}"
            notes += [f"{who} is not ready: {problem}" for problem in status.problems]
            notes += [f"{who}, {each.subject}: {each.text}" for each in refused]
            state = "not ready" if status.problems else "refuses" if refused else "ready"
            rows.append(_broker(_Pages(before, now, [name], status.node_id), name, status.node_id, state))
    pages = _Pages(before, now, [*now.pages], None)
    if offline := int(pages.sums("kafka_controller_kafkacontroller_offlinepartitionscount").get((), 0)):
        notes.append(f"{offline} partitions have no leader")
    return Report(
        time.time_ns() // 1_000_000,
        tuple(sorted(rows, key=lambda row: (-row.alarm, row.node_id is None, row.node_id))),
        tuple(sorted(_topics(pages), key=lambda row: (-row.alarm, -(row.bytes_in_per_s or 0), row.topic))),
        tuple(sorted(_groups(pages), key=lambda row: (-row.alarm, -(row.record_lag or 0), row.group))),
        tuple(sorted(_requests(pages), key=lambda row: (-row.per_s, row.request))),
        tuple(map(printable, notes)),
    )


def _broker(pages: _Pages, endpoint: str, node_id: int | None, state: str) -> BrokerRow:
    return BrokerRow(
        node_id=node_id,
        endpoint=endpoint,
        state=state,
        leaders=_whole(pages.sums("kafka_server_replicamanager_leadercount").get(())),
        # The sample without a topic has all topics.
        records_per_s=pages.rates(_MESSAGES_IN, "topic").get(("",)),
        bytes_in_per_s=pages.rates(_BYTES_IN, "topic").get(("",)),
        bytes_out_per_s=pages.rates(_BYTES_OUT, "topic").get(("",)),
        requests_per_s=pages.rates("korvet_request_seconds_count").get(()),
        connections=_whole(pages.sums("kafka_server_socket_server_metrics_connection_count").get(())),
    )


def _topics(pages: _Pages) -> Iterator[TopicRow]:
    messages = pages.rates(_MESSAGES_IN, "topic")
    bytes_in, bytes_out = pages.rates(_BYTES_IN, "topic"), pages.rates(_BYTES_OUT, "topic")
    current = pages.sums("kafka_topic_partition_current_offset", "topic")
    oldest = pages.sums("kafka_topic_partition_oldest_offset", "topic")
    sizes = pages.sums("kafka_log_log_size", "topic")
    counts = pages.sums("kafka_topic_partitions", "topic")
    under_replicated = pages.sums("kafka_topic_partition_under_replicated_partition", "topic")
    # The page has the records of a new topic before its partitions. The topic "" has the sum of all topics.
    for key in current.keys() | counts.keys() | (messages.keys() - {("",)}):
        yield TopicRow(
            topic=key[0],
            records_per_s=messages.get(key),
            bytes_in_per_s=bytes_in.get(key),
            bytes_out_per_s=bytes_out.get(key),
            size_bytes=_whole(sizes.get(key)),
            records=_whole(current[key] - oldest[key]) if key in current and key in oldest else None,
            partitions=_whole(counts.get(key)),
            under_replicated=int(under_replicated.get(key, 0)),
        )


def _groups(pages: _Pages) -> Iterator[GroupRow]:
    lags = pages.sums("kafka_consumergroup_group_sum_lag", "group")
    lags |= pages.sums("korvet_share_group_lag", "consumergroup")
    waits = pages.sums("kafka_consumergroup_group_max_lag_seconds", "group")
    queues = pages.sums("korvet_share_group_lag_seconds", "consumergroup", "topic", "partition")
    for (name, *_), waiting_s in queues.items():
        waits[name,] = max(waits.get((name,), 0.0), waiting_s)
    commits = pages.rates("korvet_consumergroup_commits_total", "consumergroup")
    members = pages.sums("kafka_consumergroup_members", "consumergroup")
    # Two brokers may report a group while its coordinator changes.
    states = {key[0]: key[1] for key in pages.sums("korvet_consumergroup_info", "consumergroup", "state")}
    for name, state in states.items():
        key, wait_s = (name,), waits.get((name,))
        yield GroupRow(
            group=name,
            record_lag=_whole(lags.get(key)),
            lag_ms=None if wait_s is None else _whole(wait_s * 1000),
            commits_per_s=commits.get(key),
            members=_whole(members.get(key)),
            state=state,
        )


def _requests(pages: _Pages) -> Iterator[RequestRow]:
    buckets: dict[str, list[tuple[float, float]]] = {}
    for (request, limit), per_s in pages.rates("korvet_request_seconds_bucket", "request", "le").items():
        buckets.setdefault(request, []).append((float(limit), per_s))
    for request, found in buckets.items():
        # Buckets count all shorter times, too; that of +Inf counts all.
        _, per_s = max(found)
        if per_s > 0:
            within_s = min(limit_s for limit_s, rate in found if rate >= _QUANTILE * per_s)
            yield RequestRow(request, per_s, within_s * 1000)


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)


def screen(found: Report, width: int, height: int, interval_s: float) -> Group:
    """Returns the screen: notes, and of each table as many rows as fit."""
    notes = found.notes[:_MOST_NOTES]
    head = f"korvet top, every {interval_s:g} s, q quits"
    lines = [Text(head, style="bold"), *(Text(note, style="bold red") for note in notes)]
    if len(found.notes) > len(notes):
        lines[0].append(f"; {len(found.notes) - len(notes)} more notes", style="red")
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    # Each table has a line of titles.
    room = max(height - len(lines) - len(_TABLES), 0)
    rooms = {name: min(len(getattr(found, name)), max(room // _PART, 1)) for name in ("brokers", "requests")}
    room = max(room - sum(rooms.values()), 0)
    rooms["groups"] = min(len(found.groups), max(room // 2, room - len(found.topics)))
    rooms["topics"] = room - rooms["groups"]
    return Group(
        *lines, *(_table(name, getattr(found, name), width, rooms[name]) for name in _TABLES), fit=False
    )


def _table(name: str, rows: Sequence[Any], width: int, room: int) -> Table:
    """The rows of a table that fit, below a line that says how many there are."""
    columns = [each for each in _TABLES[name] if each.width <= width]
    shown = Table(box=None, expand=True, pad_edge=False, header_style="bold reverse")
    for number, each in enumerate(columns):
        title = each.title if number or len(rows) <= room else f"{each.title} ({room} of {len(rows)})"
        is_text = each.write is _name and each.field in ("endpoint", "topic", "group", "request", "state")
        shown.add_column(
            title,
            justify="left" if is_text else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=None if number else 1,
        )
    for row in rows[:room]:
        cells = (each.write(getattr(row, each.field)) for each in columns)
        shown.add_row(*map(Text, cells), style=_STYLES[row.alarm])
    return shown

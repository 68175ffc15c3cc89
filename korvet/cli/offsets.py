"""`korvet offsets`: prints the records of `__consumer_offsets`, fetched from a broker like a consumer."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import click

from korvet.cli.client import Bootstrap, Cluster
from korvet.cli.log_requests import EARLIEST, LATEST, LogRecord, fetch, list_offsets
from korvet.cli.options import bootstrap_option
from korvet.offsets.codec import DecodeError, decode_key
from korvet.offsets.formatters import format_group_record, format_offset_record
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import GroupMetadataKey, OffsetCommitKey

OFFSETS_TOPIC = "__consumer_offsets"

# How long the broker holds an empty fetch: long enough to cost nothing. Ctrl-C interrupts it.
_FOLLOW_WAIT_MS = 1_000
# Don't wait at the end of the log.
_READ_WAIT_MS = 0

_Formatter = Callable[[bytes | None, bytes | None], str | None]


def _format_any(key: bytes | None, value: bytes | None) -> str | None:
    """The text of either formatter; None for record types that neither prints."""
    return format_offset_record(key, value) or format_group_record(key, value)


# `group-metadata` and `offsets` print what Kafka's own console formatters print.
_FORMATTERS: Mapping[str, _Formatter] = {
    "all": _format_any,
    "offsets": format_offset_record,
    "group-metadata": format_group_record,
}


class _Filter(NamedTuple):
    """Selects the records to print."""

    group: str | None
    topic: str | None
    formatter: _Formatter

    def text(self, record: LogRecord) -> str | None:
        """Returns the line of a selected record, else None. Reports a damaged record on standard error."""
        try:
            if not self._matches(record.key):
                return None
            return self.formatter(record.key, record.value)
        except DecodeError as error:
            click.echo(f"offset {record.offset}: not readable: {error}", err=True)
            return None

    def _matches(self, key: bytes | None) -> bool:
        if key is None or (self.group is None and self.topic is None):
            return True
        decoded = decode_key(key)
        if not isinstance(decoded, OffsetCommitKey | GroupMetadataKey):
            return False
        if self.group is not None and decoded.group != self.group:
            return False
        return self.topic is None or (isinstance(decoded, OffsetCommitKey) and decoded.topic == self.topic)


@click.group()
def offsets() -> None:
    """Read the records of __consumer_offsets."""


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of both commands."""
    for option in (
        bootstrap_option,
        click.option("-f", "--follow", is_flag=True, help="Print new records until Ctrl-C."),
        click.option(
            "--formatter",
            type=click.Choice(list(_FORMATTERS)),
            default="all",
            show_default=True,
            help="Selects and prints records as Kafka's formatter of that name does.",
        ),
        click.option("-t", "--topic", help="Print only commits for this topic."),
        click.option("-g", "--group", help="Print only records of this group."),
    ):
        command = option(command)
    return command


@offsets.command()
@_shared
def dump(group: str | None, topic: str | None, formatter: str, follow: bool, bootstrap: Bootstrap) -> None:
    """Print all records by partition and offset, one JSON object per line."""
    shown = _Filter(group, topic, _FORMATTERS[formatter])
    with Cluster(bootstrap) as cluster:
        positions, ends = _ends(cluster, group)
        for record in _until(cluster, positions, ends):
            _print(shown.text(record))
        if follow:
            _follow(cluster, ends, shown)


@offsets.command()
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Number of existing records to print.",
)
@_shared
def tail(
    *, lines: int, group: str | None, topic: str | None, formatter: str, follow: bool, bootstrap: Bootstrap
) -> None:
    """Print the newest records, one JSON object per line, oldest first."""
    shown = _Filter(group, topic, _FORMATTERS[formatter])
    with Cluster(bootstrap) as cluster:
        positions, ends = _ends(cluster, group)
        if formatter == "all" and group is None and topic is None:
            # Offsets of this topic are dense: the last `lines` records of a partition begin at `end - lines`.
            positions = {index: max(start, ends[index] - lines) for index, start in positions.items()}
        newest: deque[tuple[int, str]] = deque(maxlen=lines)
        dated = ((record.timestamp_ms, shown.text(record)) for record in _until(cluster, positions, ends))
        newest.extend(sorted((when, text) for when, text in dated if text is not None))
        for _, text in newest:
            _print(text)
        if follow:
            _follow(cluster, ends, shown)


def _ends(cluster: Cluster, group: str | None) -> tuple[dict[int, int], dict[int, int]]:
    """Returns start and end of each partition that may contain selected records."""
    count = len(cluster.topic(OFFSETS_TOPIC).partitions)
    indexes = range(count) if group is None else [partition_for(group, count)]
    return (
        list_offsets(cluster, OFFSETS_TOPIC, indexes, EARLIEST),
        list_offsets(cluster, OFFSETS_TOPIC, indexes, LATEST),
    )


def _until(cluster: Cluster, positions: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[LogRecord]:
    """Yields records from the positions up to the ends, partition by partition."""
    for index in sorted(positions):
        position = positions[index]
        while position < ends[index]:
            fetched = fetch(cluster, OFFSETS_TOPIC, {index: position}, _READ_WAIT_MS)[index]
            yield from (record for record in fetched.records if record.offset < ends[index])
            if fetched.next_offset == position:
                break
            position = fetched.next_offset


def _follow(cluster: Cluster, ends: Mapping[int, int], shown: _Filter) -> None:
    positions = dict(ends)
    while True:
        for index, fetched in fetch(cluster, OFFSETS_TOPIC, positions, _FOLLOW_WAIT_MS).items():
            positions[index] = fetched.next_offset
            for record in fetched.records:
                _print(shown.text(record))


def _print(text: str | None) -> None:
    if text is not None:
        click.echo(text)

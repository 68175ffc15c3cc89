"""The source with newestCommits, without a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.offsets.codec import encode_key
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey
from korvet.spark.source import KorvetDataSource
from korvet.spark.source import newest as newest_reader
from korvet.spark.source.errors import SourceError
from tests.spark.direct import rows_of, schema_of
from tests.spark.keyspace import OFFSETS_TOPIC
from tests.spark.test_views import member, stable

if TYPE_CHECKING:
    from tests.spark.keyspace import Keyspace

MS = 1_700_000_000_000
GROUP = "g"


def newest(keyspace: Keyspace, count: int, **options: str) -> list[int]:
    """The offsets of the records that are kept, in order."""
    given = {"redis": keyspace.url, "topics": OFFSETS_TOPIC, **options}
    more = {"newestCommits": str(count), "newestCommitsUntil": str(MS), **options}
    source = KorvetDataSource({**given, **more})
    reader = source.reader(schema_of("key", "value", "partition", "offset", "timestamp"))
    rows: list[dict[str, Any]] = rows_of(reader, reader.partitions())
    assert {row["partition"] for row in rows} <= {partition_for(GROUP)}
    return sorted(row["offset"] for row in rows)


@pytest.mark.parametrize("rows_at_once", [1, 3, 50_000])
def test_what_the_state_of_groups_depends_on(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(newest_reader, "_ROWS_AT_ONCE", rows_at_once)
    keyspace.offsets_topic()
    for offset in range(4):
        keyspace.commit(GROUP, "orders", 0, offset, at_ms=MS)
    keyspace.commit(GROUP, "orders", 1, 7, at_ms=MS)
    keyspace.commit(GROUP, "orders", 1, None, at_ms=MS)
    keyspace.group(GROUP, stable(1, MS, [member("a", 0)]), at_ms=MS)
    keyspace.group(GROUP, stable(2, MS, []), at_ms=MS)
    # A damaged commit hides no earlier one, and a later one doesn't count yet.
    damaged = encode_key(OffsetCommitKey(GROUP, "orders", 0))
    keyspace.raw_offset_record(partition_for(GROUP), damaged, b"\0\3", MS)
    keyspace.commit(GROUP, "orders", 0, 9, at_ms=MS + 1)
    assert newest(keyspace, 1) == [3, 5, 6, 7]
    assert newest(keyspace, 2) == [2, 3, 4, 5, 6, 7]


def test_nothing_to_read(keyspace: Keyspace) -> None:
    keyspace.offsets_topic()
    assert newest(keyspace, 1) == []
    keyspace.commit(GROUP, "orders", 0, 9, at_ms=MS + 1)
    assert newest(keyspace, 1) == []


def test_options_of_the_source_are_checked(keyspace: Keyspace) -> None:
    keyspace.offsets_topic()
    for options, message in [
        ({"topicz": "t"}, "unknown option topicz"),
        ({"topics": "t"}, "newestCommits is for the topic __consumer_offsets"),
        ({"newestCommitsUntil": "noon"}, "newestCommitsUntil must be a time in ms since 1970, not 'noon'"),
    ]:
        with pytest.raises(SourceError, match=message):
            newest(keyspace, 1, **options)
    alone = {"redis": keyspace.url, "topics": OFFSETS_TOPIC, "newestCommitsUntil": "1"}
    with pytest.raises(SourceError, match="newestCommitsUntil needs newestCommits"):
        KorvetDataSource(alone).reader(schema_of("key", "value"))
    given = {"redis": keyspace.url, "topics": OFFSETS_TOPIC, "newestCommits": "1"}
    with pytest.raises(SourceError, match="newestCommits: not an option of a read with pushdown"):
        KorvetDataSource({**given, "pushdown": "true"}).reader(schema_of("key", "value"))
    with pytest.raises(
        SourceError, match="newestCommits needs the columns key, value, partition, offset, time"
    ):
        KorvetDataSource(given).reader(schema_of("key", "value"))
    with pytest.raises(SourceError, match=r"newestCommits: not an option of a stream$"):
        KorvetDataSource(given).streamReader(schema_of("key", "value"))

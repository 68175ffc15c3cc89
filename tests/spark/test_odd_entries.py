"""Entries that look like korvet's own, or nearly: Kafka consumers and Spark read the same records."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from korvet.offsets.entry_fields import Record as EntryRecord
from korvet.offsets.entry_fields import read_entry
from korvet.offsets.packing import entry_id, offset_after
from korvet.records.kernel import entries_to_batches
from korvet.records.native import native_rule
from korvet.spark.records.arrow import record_batch
from korvet.spark.records.columns import MAX_SPARK_MS, MIN_SPARK_MS, Origin
from korvet.spark.records.entries import columns_of
from korvet.spark.records.page import Page
from korvet.spark.versions import arrow_schema
from tests.spark.direct import batch, schema_of
from tests.spark.forms import INSTALLED, UNCOMPILED, using
from tests.spark.keyspace import Keyspace
from tests.support.admin import create_topic
from tests.support.confluent import producer, read_all, send
from tests.support.polling import until
from tests.support.records import NOW_MS, Record
from tests.unit.records.forms import read_back, split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.servers import KorvetServer

SCHEMA = arrow_schema(schema_of())
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[bytes | None, bytes | None, int, int | None, tuple[tuple[str, bytes | None], ...]]
"""Key, value, offset, timestamp (ms) if Spark has it, headers."""

PRODUCER = [b"pid", b"4242", b"epoch", b"12"]
ODD: list[list[bytes]] = [
    [*PRODUCER, b"value", b"0.93"],
    [b"pid", b"4242", b"epoch", b"1795890336", b"value", b"0.93"],
    [*PRODUCER, b"loss", b"0.93"],
    [*PRODUCER, b"key", b"k"],
    PRODUCER,
    [b"pid", b"4242", b"value", b"v"],
    [b"epoch", b"12", b"value", b"v"],
    [b"pid", b"-1", b"epoch", b"0", b"value", b"v"],
    [b"pid", b"x", b"epoch", b"0", b"value", b"v"],
    [b"pid", b"1", b"epoch", b"32767", b"value", b"v"],
    [b"pid", b"1", b"epoch", b"32768", b"value", b"v"],
    [b"pid", b"9" * 18, b"epoch", b"0", b"value", b"v"],
    [b"pid", b"9" * 19, b"epoch", b"0", b"value", b"v"],
    [b"pid", b"007", b"epoch", b"00", b"value", b"v"],
    [*PRODUCER, b"pid", b"4242", b"value", b"v"],
    [b"ctl", b"commit", *PRODUCER],
    [*PRODUCER, b"ctl", b"abort"],
    [b"ctl", b"commit"],
    [b"ctl", b"stop", *PRODUCER],
    [b"ctl", b"commit", b"pid", b"1", b"epoch", b"1795890336"],
    [b"ctl", b"commit", b"pid", b"4242", b"value", b"v"],
    [b"ctl", b"commit", b"ctl", b"abort", b"pid", b"4242"],
    [b"ctl", b"commit", *PRODUCER, b"value", b"v"],
    [b"value", b"v", b"key", b"k"],
    [b"key", b"k", b"key", b"k", b"value", b"v"],
    [b"value", b"v", b"value", b"v"],
    [b"key", b"k"],
    [b"value", b""],
    [b"ts", b"5", b"value", b"v"],
    [b"value", b"v", b"ts", b"now"],
    [b"value", b"v", b"ts", b"-"],
    [b"value", b"v", b"ts", b""],
    [b"value", b"v", b"ts", b"9" * 19],
    [b"value", b"v", b"ts", b"9" * 25],
    [b"value", b"v", b"ts", b"0" * 19 + b"5"],
    [b"value", b"v", b"ts", b"-00012"],
    [b"value", b"v", b"ts", b"1", b"ts", b"1"],
    [b"header.", b"", b"nullheader.", b""],
    [b"value", b"v", b"nullheader.x", b"not null"],
    [b"nullheader", b"", b"header", b"h"],
    [b"header.a", b"1", b"value", b"v", b"nullheader.a", b"", b"header.a", b"\xff"],
    [b"", b""],
    [b"", b"", b"value", b"v"],
    [b"\xff\x00", b"\xfe"],
    [b"temperature", b"21.5", b"room", "küche".encode()],
    [b"batch", b""],
    [b"batch", b"no batch", b"value", b"v"],
    [b"batch", b"\0" * 61],
]


# What both decoders make of entries, without servers


def raw(entries: Sequence[tuple[bytes, list[bytes]]]) -> bytes:
    def bulk(text: bytes) -> bytes:
        return b"$%d\r\n%s\r\n" % (len(text), text)

    return b"*%d\r\n" % len(entries) + b"".join(
        b"*2\r\n" + bulk(name) + b"*%d\r\n" % len(fields) + b"".join(map(bulk, fields))
        for name, fields in entries
    )


def shown_ms(timestamp_ms: int) -> int | None:
    return timestamp_ms if MIN_SPARK_MS <= timestamp_ms <= MAX_SPARK_MS else None


def by_the_broker(reply: bytes, bias: int, native_format: str, *, append_time: bool) -> tuple[list[Row], int]:
    """Also the offset of a damaged batch; -1 without one."""
    found = entries_to_batches(
        reply,
        0,
        len(reply),
        bias=bias,
        max_bytes=1 << 30,
        leader_epoch=0,
        log_append_time=append_time,
        native=native_rule(native_format),
    )
    rows = []
    for header, data in split(found.data):
        for offset, record in [] if header.control else read_back(data):
            ms = header.max_timestamp_ms if header.log_append_time else record.timestamp_ms
            headers = tuple((name.decode("utf-8", "replace"), value) for name, value in record.headers)
            rows.append((record.key, record.value, offset, shown_ms(ms), headers))
    return rows, found.damaged_offset


def by_spark(entries: Any, origin: Origin) -> list[Row]:
    found = record_batch(columns_of(entries, origin), origin, SCHEMA)
    return [row_of(row) for row in found.to_pylist()]


def row_of(row: dict[str, Any]) -> Row:
    ms = None
    if row["timestamp"] is not None:
        time = row["timestamp"]
        ms = (time.replace(tzinfo=time.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1)
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return row["key"], row["value"], row["offset"], ms, headers


names = st.sampled_from(
    [
        *(b"key", b"value", b"ts", b"pid", b"epoch", b"ctl", b"header.a", b"header.", b"nullheader.b"),
        *(b"nullheader.", b"nullheader", b"header", b"batch", b"", b"x", b"header.\xff", b"Value", b"keys"),
    ]
)
texts = st.one_of(
    st.sampled_from([b"", b"0", b"7", b"-1", b"commit", b"abort", b"32767", b"32768", b"-", b" 1", b"1_0"]),
    st.integers(-(2**66), 2**66).map(lambda number: b"%d" % number),
    st.integers(1, 30).map(lambda zeros: b"0" * zeros + b"5"),
    st.binary(max_size=6),
)


def flat(pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [part for pair in pairs for part in pair]


lists_of_fields = st.one_of(
    st.lists(st.tuples(names, texts), min_size=1, max_size=6).map(flat),
    st.sampled_from(ODD),
    st.permutations([(b"ctl", b"commit"), (b"pid", b"7"), (b"epoch", b"0")]).map(flat),
)


@pytest.mark.parametrize("native_format", ["json", "field:x"])
@pytest.mark.parametrize("append_time", [False, True])
@given(
    st.lists(st.tuples(st.sampled_from([1, 1, 2000]), lists_of_fields), min_size=1, max_size=8),
    st.sampled_from([0, 1]),
    st.sampled_from([5, 1_700_000_000_000, 1 << 52]),
)
@example([(1, fields) for fields in ODD], 0, NOW_MS)
@example([(1, fields) for fields in ODD], 1, 7)
@example([(1, ODD[0])] * 3, 0, NOW_MS)
def test_both_decoders_read_the_same(
    native_format: str, append_time: bool, steps: list[tuple[int, list[bytes]]], bias: int, ms: int
) -> None:
    """Steps of the sequence and fields; sequences above 1023 have no offset."""
    sequence, entries = 0, []
    for step, fields in steps:
        sequence += step
        entries.append((b"%d-%d" % (ms, sequence), fields))
    reply = raw(entries)
    expected, damaged = by_the_broker(reply, bias, native_format, append_time=append_time and not bias)
    if damaged >= 0:
        expected = [row for row in expected if row[2] < damaged]
    field = native_format.partition(":")[2].encode() or None
    origin = Origin("t", 0, bias, int(append_time), field)
    for form in (INSTALLED, UNCOMPILED, None):
        with using(form):
            page = Page(np.frombuffer(reply, dtype=np.uint8).copy(), len(reply))
            for found in (by_spark(page, origin), by_spark(entries, origin)):
                assert [row for row in found if damaged < 0 or row[2] < damaged] == expected


@given(lists_of_fields, st.sampled_from([0, 1_700_000_000_000]))
def test_the_definition_is_the_kernels(fields: list[bytes], ms: int) -> None:
    rows, damaged = by_the_broker(raw([(b"%d-1" % ms, fields)]), 0, "json", append_time=False)
    found = read_entry(fields, ms)
    if isinstance(found, EntryRecord):
        headers = tuple((name.decode("utf-8", "replace"), value) for name, value in found.headers)
        assert rows == [(found.key, found.value, ms << 10 | 1, shown_ms(found.timestamp_ms), headers)]
    elif found is not None:
        assert rows == []
    elif damaged < 0:
        assert [row[0] for row in rows] == [None]


# What clients and Spark read from a broker


class Partition:
    """A partition to which Kafka producers and Redis applications add entries."""

    def __init__(self, server: KorvetServer, topic: str, configs: dict[str, str]) -> None:
        self.server, self.topic, self.stream = server, topic, f"korvet:{topic}:0"
        self.bias = int(configs.get("offset.assignment") == "dense")
        create_topic(server.bootstrap, topic, 1, {"retention.ms": "-1", **configs})
        self.plain = producer(server.bootstrap, linger_ms=0)

    def add(self, fields: Sequence[bytes], name: str = "") -> None:
        """XADD at the next offset; a marker may be appended in between."""

        def added() -> bool:
            last = self.server.redis.xinfo_stream(self.stream)["last-generated-id"]
            following = entry_id(offset_after(last, self.bias), self.bias) if self.bias else "*"
            try:
                self.server.redis.execute_command("XADD", self.stream, name or following, *fields)
            except ResponseError as error:
                if "equal or smaller" not in str(error):
                    raise
                return False
            return True

        until(added, 20, "the entry is added")

    def send(self, value: bytes) -> None:
        send(self.plain, self.topic, 0, [Record(b"k", value, (("h", b"1"),), NOW_MS)])

    def opened(self) -> dict[int, int]:
        noted = self.server.redis.hget(f"{{{self.stream}}}:meta", "open") or b""
        return {int(pid): int(first) for pid, first in struct.iter_unpack(">2d", noted)}

    def by_kafka(self, isolation: str) -> list[Row]:
        read = read_all(self.server.bootstrap, self.topic, isolation_level=isolation)
        found = [(one.offset, one.record) for one in read]
        return [(r.key, r.value, offset, shown_ms(r.timestamp_ms), r.headers) for offset, r in found]

    def by_spark(self, isolation: str) -> list[Row]:
        keyspace = Keyspace(self.server.redis, f"unix://{self.server.socket_path()}")
        return [row_of(row) for row in batch(keyspace, topic=self.topic, isolationLevel=isolation)]

    def check(self) -> dict[str, list[bytes | None]]:
        """Check that all readers agree; returns what they read, by isolation level."""
        values = {}
        for isolation in ("read_uncommitted", "read_committed"):
            expected = [without_time(row) for row in self.by_kafka(isolation)]
            for form in (INSTALLED, None):
                with using(form):
                    assert [without_time(row) for row in self.by_spark(isolation)] == expected
            values[isolation] = [row[1] for row in expected]
        return values


def without_time(row: Row) -> Row:
    """librdkafka shows no times before 1970."""
    key, value, offset, ms, headers = row
    return key, value, offset, None if ms is None or ms < 0 else ms, headers


FORMS = [
    {"storage.layout": layout, "offset.assignment": assignment}
    for layout in ("record", "batch")
    for assignment in ("clock", "dense")
]


@pytest.mark.parametrize("configs", FORMS, ids=lambda configs: "-".join(configs.values()))
def test_odd_entries_are_the_same_records_for_all(server: KorvetServer, configs: dict[str, str]) -> None:
    there = Partition(server, "odd-" + "-".join(configs.values()), configs)
    writer = producer(server.bootstrap, transactional_id=there.topic)
    writer.init_transactions(20)
    there.send(b"first")
    for number, fields in enumerate(ODD):
        there.add(fields)
        if number % 5 == 0:
            there.send(b"between %d" % number)
        if number % 10 == 0:
            writer.begin_transaction()
            writer.produce(there.topic, b"committed" if number % 20 else b"aborted", partition=0)
            assert writer.flush(20) == 0
            (writer.commit_transaction if number % 20 else writer.abort_transaction)(20)
    if not there.bias:
        last = server.redis.xinfo_stream(there.stream)["last-generated-id"]
        there.add([b"value", b"without an offset"], f"{int(last.split(b'-')[0]) + 1}-5000")
    there.send(b"last")
    until(lambda: not there.opened(), 20, "the markers are written")
    read = there.check()
    for isolation, values in read.items():
        assert values[0] == b"first"
        assert values[-1] == b"last"
        assert values.count(b"committed") == 2
        assert values.count(b"aborted") == (3 if isolation == "read_uncommitted" else 0)
        assert b"0.93" in values
    # Two of the entries are markers, which nobody sees.
    between = [value for value in read["read_committed"] if value and value.startswith(b"between")]
    assert len(read["read_committed"]) == len(ODD) - 2 + len(between) + 2 + 2


@pytest.mark.parametrize("configs", FORMS, ids=lambda configs: "-".join(configs.values()))
@pytest.mark.parametrize("outcome", [b"commit", b"abort"])
def test_forged_markers_end_no_transaction(
    server: KorvetServer, configs: dict[str, str], outcome: bytes
) -> None:
    """The leader knows which transactions are open and which were aborted. An entry can't change that."""
    there = Partition(server, f"forged-{outcome.decode()}-" + "-".join(configs.values()), configs)
    writer = producer(server.bootstrap, transactional_id=there.topic, linger_ms=0)
    writer.init_transactions(20)
    committed = [b"0 of True", b"1 of True", b"behind", b"2 of True"]
    for commits in (True, False):
        writer.begin_transaction()
        for number in range(3):
            writer.produce(there.topic, b"%d of %r" % (number, commits), partition=0)
            assert writer.flush(20) == 0
            (pid,) = there.opened()
            if number == 1:
                there.add([b"ctl", outcome, b"pid", b"%d" % pid, b"epoch", b"0"])
                there.send(b"behind")
        assert there.check()["read_committed"] == ([] if commits else committed)
        (writer.commit_transaction if commits else writer.abort_transaction)(20)
        until(lambda: not there.opened(), 20, "the marker is written")
    read = there.check()
    assert read["read_committed"] == [*committed, b"behind"]
    assert len(read["read_uncommitted"]) == 8

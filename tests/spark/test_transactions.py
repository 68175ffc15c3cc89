"""isolationLevel: the visible records of transactions, as the leader has noted them, in both layouts."""

from __future__ import annotations

import gc
import json
import math
import struct
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.offsets.packing import entry_id, pack
from korvet.spark.records.fields import parse_fields
from korvet.spark.source.errors import DataLoss, SourceError
from korvet.spark.versions import features, features_of
from tests.api.batches import batch as record_batch
from tests.spark.direct import Stream, batch, limit, rows_of, values

if TYPE_CHECKING:
    from tests.spark.keyspace import Keyspace

MS = 1_700_000_000_000
BASE = pack(MS, 0)
TRANSACTIONAL, CONTROL = 16, 32


class Log:
    """One partition to which records of transactions, markers and other records are added."""

    def __init__(self, keyspace: Keyspace, *, batches: bool = False) -> None:
        self._keyspace = keyspace
        self._batches = batches
        self.next = BASE
        keyspace.topic("t")

    def _id(self) -> str:
        self.next += 3
        return entry_id(self.next)

    def record(self, value: bytes, producer: int | None = None) -> None:
        entry = self._id()
        if producer is not None:
            self._keyspace.begin("t", 0, producer, self.next)
        if self._batches:
            attributes = TRANSACTIONAL if producer is not None else 0
            data = self._batch([(b"k", value)], attributes, -1 if producer is None else producer)
            self._keyspace.add("t", 0, entry, b"batch", data)
        else:
            fields = [b"key", b"k", b"value", value]
            if producer is not None:
                fields += [b"pid", b"%d" % producer, b"epoch", b"0"]
            self._keyspace.add("t", 0, entry, *fields)

    def marker(self, producer: int, outcome: str) -> None:
        entry = self._id()
        self._keyspace.end("t", 0, producer, self.next, outcome)
        if self._batches:
            key = struct.pack(">hh", 0, 1 if outcome == "commit" else 0)
            data = self._batch([(key, struct.pack(">hi", 0, 7))], TRANSACTIONAL | CONTROL, producer)
            self._keyspace.add("t", 0, entry, b"batch", data)
        else:
            # A coordinator that fences a producer increments the epoch.
            self._keyspace.add("t", 0, entry, b"ctl", outcome, b"pid", str(producer), b"epoch", b"1")

    def _batch(self, pairs: list[tuple[bytes, bytes]], attributes: int, producer: int) -> bytes:
        plain = record_batch(pairs)
        checked = struct.pack(">h", attributes) + plain[23:43] + struct.pack(">qh", producer, 0) + plain[53:]
        return struct.pack(">q", self.next) + plain[8:17] + struct.pack(">I", crc32c(checked)) + checked


@pytest.mark.parametrize("batches", [False, True])
def test_what_a_batch_shows(keyspace: Keyspace, batches: bool) -> None:
    log = Log(keyspace, batches=batches)
    log.record(b"plain")
    log.record(b"one", 1)
    log.record(b"two", 2)
    log.record(b"one more", 1)
    log.marker(2, "abort")
    log.record(b"two again", 2)
    log.marker(1, "commit")
    log.marker(2, "commit")
    log.record(b"open", 3)
    log.record(b"behind")
    shown = [b"plain", b"one", b"one more", b"two again"]
    assert values(batch(keyspace, topic="t")) == shown
    assert values(batch(keyspace, topic="t", maxRecordsPerPartition="1")) == shown
    every = [b"plain", b"one", b"two", b"one more", b"two again", b"open", b"behind"]
    assert values(batch(keyspace, topic="t", isolationLevel="read_uncommitted")) == every
    log.marker(3, "abort")
    assert values(batch(keyspace, topic="t")) == [*shown, b"behind"]


def test_outcomes_are_found_pages_ahead(keyspace: Keyspace) -> None:
    log = Log(keyspace)
    for number in range(300):
        log.record(b"a%d" % number, 1)
        log.record(b"b%d" % number, 2)
    for number in range(700):
        log.record(b"%d" % number)
    log.marker(1, "abort")
    log.marker(2, "commit")
    got = values(batch(keyspace, topic="t", maxRecordsPerPartition="200"))
    assert got == [b"b%d" % number for number in range(300)] + [b"%d" % number for number in range(700)]


def test_the_search_for_markers_ends_with_the_read(
    keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search has asked for a page that nobody needs, on a connection that is then closed."""
    log, failed = Log(keyspace), []
    log.record(b"one", 1)
    log.marker(1, "commit")
    for number in range(300):
        log.record(b"%d" % number)
    monkeypatch.setattr("sys.unraisablehook", lambda raised: failed.append(repr(raised.exc_value)))
    assert len(batch(keyspace, topic="t")) == 301
    gc.collect()
    assert failed == []


@pytest.fixture(params=["limited", "unlimited"])
def limited(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test with the streaming reader of Spark 4.2 and with that of Spark 4.0 and 4.1."""
    if request.param == "unlimited":
        monkeypatch.setattr("korvet.spark.source.source.features", lambda: features_of((4, 1)))
    elif not features().read_limits:
        pytest.skip("this Spark has no read limits")
    return str(request.param) == "limited"


@pytest.mark.parametrize("coordinated", [False, True])
def test_a_stream_stops_before_open_transactions(
    keyspace: Keyspace, coordinated: bool, limited: bool
) -> None:
    log = Log(keyspace)
    if coordinated:
        keyspace.topic("__transaction_state")
    stream = Stream(keyspace, topic="t", **(limit(1000) if limited else {}))
    log.record(b"0")
    log.record(b"1", 1)
    log.record(b"2")
    assert values(stream.trigger()) == [b"0"]
    assert stream.trigger() is None
    stream.restart()
    assert not stream.trigger()
    log.record(b"3", 2)
    log.marker(1, "commit")
    assert values(stream.trigger()) == [b"1", b"2"]
    log.marker(2, "abort")
    log.record(b"4")
    assert values(stream.trigger()) == [b"4"]
    assert stream.trigger() is None


def test_many_plain_records_behind_an_open_transaction(keyspace: Keyspace) -> None:
    """In a keyspace with a transaction coordinator, the newest entries need not be transactional."""
    keyspace.topic("__transaction_state")
    log = Log(keyspace)
    log.record(b"open", 1)
    for number in range(200):
        log.record(b"%d" % number)
    stream = Stream(keyspace, topic="t")
    assert not stream.trigger()
    assert stream.trigger() is None
    log.marker(1, "commit")
    assert len(stream.trigger() or []) == 201


EVENTS = st.lists(
    st.tuples(st.sampled_from(["plain", "record", "commit", "abort"]), st.integers(1, 3)), max_size=25
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, batches=st.booleans(), most=st.integers(1, 7))
def test_batch_and_stream_show_what_is_committed(
    keyspace: Keyspace, events: list[tuple[str, int]], batches: bool, most: int
) -> None:
    keyspace.client.flushall()
    log = Log(keyspace, batches=batches)
    stream = Stream(keyspace, topic="t", **limit(most))
    seen: list[bytes] = []
    kept: list[tuple[bytes, int]] = []
    for number, (what, producer) in enumerate(events):
        value = b"%d" % number
        if what in {"plain", "record"}:
            log.record(value, producer if what == "record" else None)
            kept.append((value, producer if what == "record" else 0))
        else:
            log.marker(producer, what)
            kept = [
                (value, 0 if owner == producer and what == "commit" else owner)
                for value, owner in kept
                if owner != producer or what == "commit"
            ]
        if number % 5 == 0:
            seen += values(stream.trigger())
    stable = next((at for at, (_, owner) in enumerate(kept) if owner), len(kept))
    expected = [value for value, _ in kept[:stable]]
    while (rows := stream.trigger()) is not None:
        seen += values(rows)
    assert seen == expected
    assert values(batch(keyspace, topic="t")) == [value for value, owner in kept[:stable] if not owner]


def test_a_marker_after_the_end_of_a_read_counts(keyspace: Keyspace) -> None:
    """Two reads with a common limit return each committed record once."""
    keyspace.topic("__transaction_state")
    log = Log(keyspace)
    log.record(b"before")
    log.record(b"one", 1)
    log.record(b"two", 2)
    log.record(b"between")
    limit = json.dumps({"t": {"0": log.next + 1}})
    log.record(b"one more", 1)
    log.marker(1, "commit")
    log.marker(2, "abort")
    assert values(batch(keyspace, topic="t", endingOffsets=limit)) == [b"before", b"one", b"between"]
    assert values(batch(keyspace, topic="t", startingOffsets=limit)) == [b"one more"]
    assert not batch(keyspace, topic="t", endingOffsets=limit, openTransactions="only")
    log.record(b"open", 3)
    limit = json.dumps({"t": {"0": log.next + 1}})
    log.record(b"later", 3)
    assert values(batch(keyspace, topic="t", endingOffsets=limit))[-1] == b"one more"
    opened = batch(keyspace, topic="t", endingOffsets=limit, openTransactions="only")
    assert values(opened) == [b"open"]


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_read_that_starts_within_a_transaction(keyspace: Keyspace, limited: bool, outcome: str) -> None:
    """It returns nothing until the transaction ends, as a Kafka consumer gets nothing there."""
    keyspace.topic("__transaction_state")
    log = Log(keyspace)
    log.record(b"one", 1)
    start = {"startingOffsets": json.dumps({"t": {"0": log.next + 1}})}
    log.record(b"plain")
    log.record(b"one more", 1)
    log.record(b"behind")
    stream = Stream(keyspace, topic="t", **start)
    assert stream.trigger() is None
    assert not batch(keyspace, topic="t", **start)
    assert values(batch(keyspace, topic="t", openTransactions="pass", **start)) == [b"plain", b"behind"]
    log.marker(1, outcome)
    rest = [b"plain", b"one more", b"behind"] if outcome == "commit" else [b"plain", b"behind"]
    assert values(stream.trigger()) == rest
    assert values(batch(keyspace, topic="t", **start)) == rest


@pytest.mark.parametrize("opened", ["wait", "pass"])
def test_the_latest_position_is_before_open_transactions(
    keyspace: Keyspace, limited: bool, opened: str
) -> None:
    keyspace.topic("__transaction_state")
    log = Log(keyspace)
    log.record(b"old")
    log.record(b"one", 1)
    log.record(b"two", 2)
    log.marker(2, "commit")
    latest = {"startingOffsets": "latest", "openTransactions": opened}
    stream = Stream(keyspace, topic="t", **latest)
    log.record(b"one more", 1)
    log.record(b"new")
    seen = values(stream.trigger())
    log.marker(1, "commit")
    seen += values(stream.trigger())
    assert (
        seen
        == {
            "wait": [b"one", b"two", b"one more", b"new"],
            "pass": [b"new", b"one", b"one more"],
        }[opened]
    )
    stream = Stream(keyspace, topic="t", **latest)
    log.record(b"newest")
    assert values(stream.trigger()) == [b"newest"]


PASS = {"openTransactions": "pass"}


@pytest.mark.parametrize(
    "note",
    [struct.pack(">2d", 1, BASE)[:-1], struct.pack(">2d", 1, math.nan), struct.pack(">2d", math.inf, 1)],
)
def test_a_damaged_note_of_open_transactions(keyspace: Keyspace, note: bytes) -> None:
    """A reader of committed records would wait for transactions that it can't know."""
    log = Log(keyspace)
    log.record(b"open", 1)
    keyspace.client.hset("{korvet:t:0}:meta", "open", note)
    with pytest.raises(
        SourceError, match=r"open transactions of t-0 .*'open' of \{korvet:t:0\}:meta is damaged"
    ):
        batch(keyspace, topic="t")
    assert values(batch(keyspace, topic="t", isolationLevel="read_uncommitted")) == [b"open"]


@pytest.mark.parametrize("batches", [False, True])
def test_open_transactions_hide_no_other_record(keyspace: Keyspace, batches: bool, limited: bool) -> None:
    log = Log(keyspace, batches=batches)
    keyspace.topic("__transaction_state")
    stream = Stream(keyspace, topic="t", **PASS)
    log.record(b"one", 1)
    log.record(b"plain")
    log.record(b"two", 2)
    log.record(b"three", 3)
    log.marker(2, "commit")
    log.record(b"after")
    assert values(stream.trigger()) == [b"plain", b"two", b"after"]
    assert values(batch(keyspace, topic="t", **PASS)) == [b"plain", b"two", b"after"]
    log.record(b"one more", 1)
    log.record(b"later")
    assert values(stream.trigger()) == [b"later"]
    assert values(batch(keyspace, topic="t", openTransactions="only")) == [b"one", b"three", b"one more"]
    stream.restart()
    log.marker(3, "abort")
    log.record(b"three again", 3)
    log.marker(1, "commit")
    assert values(stream.trigger()) == [b"one", b"one more"]
    log.marker(3, "commit")
    assert values(stream.trigger()) == [b"three again"]
    assert stream.trigger() is None
    everything = [b"one", b"plain", b"two", b"after", b"one more", b"later", b"three again"]
    assert values(batch(keyspace, topic="t", maxRecordsPerPartition="2", **PASS)) == everything
    assert not batch(keyspace, topic="t", openTransactions="only")


def test_a_batch_that_is_repeated_does_not_see_later_markers(keyspace: Keyspace) -> None:
    """A streaming batch has the same rows whenever it runs, so that a repeated one replaces the first."""
    log = Log(keyspace)
    keyspace.topic("__transaction_state")
    stream = Stream(keyspace, topic="t", **PASS)
    log.record(b"one", 1)
    log.record(b"plain")
    start = stream.at
    end = stream.latest()
    log.marker(1, "commit")
    assert values(rows_of(stream.reader, stream.reader.partitions(start, end))) == [b"plain"]


def test_a_query_that_waits_again_misses_no_record(keyspace: Keyspace, limited: bool) -> None:
    log = Log(keyspace)
    stream = Stream(keyspace, topic="t", **PASS)
    log.record(b"open", 1)
    log.record(b"plain")
    assert values(stream.trigger()) == [b"plain"]
    stream.restart(openTransactions="wait")
    log.record(b"behind")
    if not limited:
        with pytest.raises(SourceError, match="still open: set openTransactions=pass as before"):
            stream.trigger()
        return
    assert stream.trigger() is None
    log.marker(1, "commit")
    assert values(stream.trigger()) == [b"open", b"behind"]


def test_trimmed_records_of_open_transactions_are_data_loss(keyspace: Keyspace) -> None:
    log = Log(keyspace)
    stream = Stream(keyspace, topic="t", **PASS)
    log.record(b"open", 1)
    log.record(b"open too", 1)
    log.record(b"plain")
    assert values(stream.trigger()) == [b"plain"]
    keyspace.client.execute_command("XTRIM", "korvet:t:0", "MAXLEN", "2")
    log.marker(1, "commit")
    with pytest.raises(DataLoss):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert values(stream.trigger()) == [b"open too"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, batches=st.booleans(), most=st.integers(1, 7), every=st.integers(1, 6))
def test_each_committed_record_once_past_open_transactions(
    keyspace: Keyspace, events: list[tuple[str, int]], batches: bool, most: int, every: int, limited: bool
) -> None:
    keyspace.client.flushall()
    log = Log(keyspace, batches=batches)
    keyspace.topic("__transaction_state")
    stream = Stream(keyspace, topic="t", **(limit(most) if limited else {}), **PASS)
    seen: list[bytes] = []
    written: dict[bytes, int] = {}
    shown: set[bytes] = set()
    for number, (what, producer) in enumerate(events):
        value = b"%d" % number
        if what in {"plain", "record"}:
            log.record(value, producer if what == "record" else None)
            written[value] = producer if what == "record" else 0
            shown |= {value} if what == "plain" else set()
        else:
            log.marker(producer, what)
            mine = {value for value, owner in written.items() if owner == producer}
            shown |= mine if what == "commit" else set()
            written = {value: 0 if value in mine else owner for value, owner in written.items()}
        if number % every == 0:
            seen += values(stream.trigger())
            stream.restart()
        assert set(seen) <= shown
    while (rows := stream.trigger()) is not None:
        seen += values(rows)
    assert sorted(seen) == sorted(shown)
    expected = [value for value in written if value in shown]
    assert values(batch(keyspace, topic="t", maxRecordsPerPartition="3", **PASS)) == expected
    opened = [value for value, owner in written.items() if owner]
    assert values(batch(keyspace, topic="t", openTransactions="only")) == opened


@pytest.mark.parametrize(
    "fields",
    [
        [b"ctl", b"stop", b"pid", b"1", b"epoch", b"0"],
        [b"ctl", b"commit", b"pid", b"x", b"epoch", b"0"],
        [b"ctl", b"commit", b"pid", b"1"],
        [b"ctl", b"commit", b"pid", b"1", b"epoch", b"0", b"value", b"v"],
        [b"value", b"v", b"pid", b"1"],
        [b"value", b"v", b"pid", b"-1", b"epoch", b"0"],
        [b"value", b"v", b"pid", b"1", b"epoch", b"0", b"pid", b"1"],
    ],
)
def test_look_alikes_of_applications(keyspace: Keyspace, fields: list[Any]) -> None:
    """An entry that is neither a marker nor in a transaction is a record of a native application."""
    parsed = parse_fields(fields, MS, None)
    assert parsed is not None
    key, value, _, _, producer = parsed
    assert (key, producer) == (None, -1)
    assert value is not None
    assert value.startswith(b"{")
    keyspace.topic("t")
    keyspace.add("t", 0, "5-0", *fields)
    assert values(batch(keyspace, topic="t")) == [value]

"""Positions of readers that wait at the log end, or before the first record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from korvet.log import state
from korvet.offsets.packing import entry_id, pack
from korvet.redis.errors import OffsetOutOfRange
from tests.api.batches import batch
from tests.storage.batches import decode
from tests.storage.test_batch_layout import append, pairs
from tests.support.logs import read_log

if TYPE_CHECKING:
    from korvet.log.partition_log import PartitionLog
    from tests.storage.conftest import Bench


DEADLINE_S = 10.0
# Retention deletes whole spans of the index.
SPAN_BYTES = 1 << 20


def put(bench: Bench, log: PartitionLog, *values: bytes) -> None:
    bench.run(append(log, batch(pairs(*values))))


def wait_past(bench: Bench, offset: int) -> None:
    """Until the next clock offset is not this one."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        seconds, micros = bench.client.time()
        if pack(1000 * seconds + micros // 1000, 0) > offset:
            return
        assert time.monotonic() < deadline_s


@pytest.fixture(autouse=True)
def asked_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that were just read are not used instead of those in Redis."""
    monkeypatch.setattr(state, "BOUNDS_FRESH_S", -1.0)


@pytest.mark.parametrize("assignment", ["clock", "dense"])
@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize("how", ["delete_records", "retention", "xdel", "xtrim"])
def test_a_reader_at_the_end_of_an_emptied_log_gets_the_next_record(
    bench: Bench, how: str, layout: str, assignment: str
) -> None:
    log = bench.log(offset_assignment=assignment, storage_layout=layout)
    put(bench, log, b"a", b"b")
    parked = bench.run(log.bounds()).log_end
    if how == "delete_records":
        bench.run(log.delete_before(None, 1_000))
    elif how == "retention":
        bench.run(log.trimming.trim(0, None, int(time.time() * 1000) + 10_000))
    elif how == "xdel":
        bench.client.xdel(log.stream, *(entry for entry, _ in bench.client.xrange(log.stream)))
    else:
        bench.client.xtrim(log.stream, maxlen=0, approximate=False)
    bounds = bench.run(log.bounds())
    assert (bounds.log_start, bounds.log_end, bounds.entries) == (parked, parked, 0)
    assert bench.run(read_log(log, parked, 1000)).record_count == 0
    wait_past(bench, parked)
    put(bench, log, b"c")
    fetched = bench.run(read_log(log, parked, 1000))
    assert [record.value for record in decode(fetched.data)] == [b"c"]


def test_deleting_from_within_does_not_move_the_log_start(bench: Bench) -> None:
    log = bench.log()
    assert bench.run(log.bounds()).log_end == 0
    put(bench, log, b"a", b"b", b"c")
    ids = [entry for entry, _ in bench.client.xrange(log.stream)]
    bench.client.xdel(log.stream, ids[1])
    fetched = bench.run(read_log(log, 0, 1000))
    assert [record.value for record in decode(fetched.data)] == [b"a", b"c"]


def test_a_reader_of_all_deleted_records_goes_on_with_the_first_that_is_left(bench: Bench) -> None:
    """DeleteRecords up to a committed offset, as Kafka Streams does with repartition topics."""
    log = bench.log()
    put(bench, log, b"a", b"b")
    committed = bench.run(log.bounds()).log_end
    wait_past(bench, committed)
    put(bench, log, b"c")
    bench.run(log.delete_before(committed, 1_000))
    fetched = bench.run(read_log(log, committed, 1000))
    assert [record.value for record in decode(fetched.data)] == [b"c"]


def test_a_reader_at_the_end_of_an_emptied_log_gets_a_native_entry(bench: Bench) -> None:
    log = bench.log()
    put(bench, log, b"a", b"b")
    parked = bench.run(log.bounds()).log_end
    bench.run(log.delete_before(None, 1_000))
    bench.client.xadd(log.stream, {"value": "c"})
    fetched = bench.run(read_log(log, parked, 1000))
    assert [record.value for record in decode(fetched.data)] == [b"c"]


@pytest.mark.parametrize("layout", ["record", "batch"])
def test_a_reader_of_all_that_retention_deletes_goes_on_with_the_first_that_is_left(
    bench: Bench, layout: str
) -> None:
    log = bench.log(storage_layout=layout)
    put(bench, log, bytes(SPAN_BYTES // 2), bytes(SPAN_BYTES // 2))
    read_up_to = bench.run(log.bounds()).log_end
    wait_past(bench, read_up_to)
    put(bench, log, b"c")
    assert bench.run(log.trimming.trim(None, 1, 0)) > 0
    bounds = bench.run(log.bounds())
    assert (bounds.log_start, bounds.entries) == (read_up_to, 1)
    fetched = bench.run(read_log(log, read_up_to, 1000))
    assert [record.value for record in decode(fetched.data)] == [b"c"]


def read(bench: Bench, log: PartitionLog, offset: int) -> tuple[list[bytes | None], int]:
    """The values from an offset on, and the offset after them."""
    fetched = bench.run(read_log(log, offset, 1000))
    return [record.value for record in decode(fetched.data)], fetched.next_offset


def add(bench: Bench, log: PartitionLog, value: str, *options: str) -> str:
    """Append an entry as a native client; an ID of its own millisecond."""
    wait_past(bench, bench.run(log.bounds()).log_end)
    return str(bench.client.execute_command("XADD", log.stream, *options, "*", "value", value).decode())


def cover(bench: Bench, log: PartitionLog) -> None:
    """Bring the index up to what native clients added."""
    bench.run(log.queries.count(0, bench.run(log.bounds()).log_end))


@pytest.mark.parametrize("covered", [True, False])
@pytest.mark.parametrize("begins_with_produced", [True, False])
def test_a_reader_of_a_queue_whose_entries_are_deleted_once_they_are_done(
    bench: Bench, covered: bool, begins_with_produced: bool
) -> None:
    log = bench.log()
    if begins_with_produced:
        put(bench, log, b"produced")
    else:
        add(bench, log, "produced")
        cover(bench, log)
    bench.client.xtrim(log.stream, maxlen=0, approximate=False)
    position = bench.run(log.bounds()).log_end
    for number in range(4):
        entry = add(bench, log, f"{number}")
        assert read(bench, log, position)[0] == [b"%d" % number]
        position = read(bench, log, position)[1]
        if covered:
            cover(bench, log)
        bench.client.xdel(log.stream, entry)
        assert read(bench, log, position) == ([], position)
    # Deleted before a reader or the index saw it.
    bench.client.xdel(log.stream, add(bench, log, "unseen"))
    if covered:
        cover(bench, log)
    wait_past(bench, bench.run(log.bounds()).log_end)
    put(bench, log, b"last")
    start = bench.run(log.bounds()).log_start
    assert start <= position
    assert read(bench, log, position)[0] == [b"last"]
    add(bench, log, "next")
    cover(bench, log)
    assert bench.run(log.bounds()).log_start == start


def test_a_reader_of_a_stream_with_a_maximum_length_of_one(bench: Bench) -> None:
    log = bench.log()
    put(bench, log, b"first")
    position = bench.run(log.bounds()).log_end
    # An entry that the index never covers.
    bench.client.xdel(log.stream, add(bench, log, "unseen"))
    cover(bench, log)
    position = max(position, bench.run(log.bounds()).log_end)
    for number in range(4):
        add(bench, log, f"{number}", "MAXLEN", "1")
        values, position = read(bench, log, position)
        assert values == [b"%d" % number]
        cover(bench, log)
    with pytest.raises(OffsetOutOfRange):
        read(bench, log, 0)


@pytest.mark.parametrize("then", ["nothing", "covered", "produced"])
@pytest.mark.parametrize("left", [0, 1])
def test_a_trim_of_native_entries_that_no_broker_has_seen_moves_the_log_start(
    bench: Bench, left: int, then: str
) -> None:
    log = bench.log()
    put(bench, log, b"first")
    position = bench.run(log.bounds()).log_end
    wait_past(bench, position)
    ids = [bench.client.xadd(log.stream, {"value": value}).decode() for value in ("a", "b")]
    bench.client.xtrim(log.stream, maxlen=left, approximate=False)
    if then == "covered":
        cover(bench, log)
    elif then == "produced":
        put(bench, log, b"c")
    bounds = bench.run(log.bounds())
    assert bounds.log_start > position
    assert entry_id(bounds.log_start - 1 + left) == ids[1]
    with pytest.raises(OffsetOutOfRange):
        read(bench, log, position)


@pytest.mark.parametrize("seen", [True, False])
def test_a_trim_of_a_stream_that_was_deleted_before_moves_the_log_start(bench: Bench, seen: bool) -> None:
    log = bench.log()
    put(bench, log, *[b"first"] * 20)
    bench.client.delete(log.stream)
    if seen:
        put(bench, log, b"again")
    position = bench.run(log.bounds()).log_end
    wait_past(bench, position)
    for number in range(5):
        bench.client.execute_command("XADD", log.stream, "MAXLEN", "1", "*", "value", f"{number}")
    with pytest.raises(OffsetOutOfRange):
        read(bench, log, position)


@pytest.mark.parametrize("noticed", ["never", "covered", "produced"])
@pytest.mark.parametrize("deleted", ["between", "newest", "oldest"])
def test_a_reader_of_an_empty_log_that_native_clients_begin(bench: Bench, noticed: str, deleted: str) -> None:
    """XDEL moves the log start to the log end that brokers know, at most."""
    log = bench.log()
    assert bench.run(log.bounds()).log_end == 0
    ids = [bench.client.xadd(log.stream, {"value": value}).decode() for value in "abc"]
    values = [b"a", b"b", b"c"]
    if noticed == "covered":
        cover(bench, log)
    elif noticed == "produced":
        put(bench, log, b"d")
        values.append(b"d")
    gone = {"between": 1, "newest": 2, "oldest": 0}[deleted]
    bench.client.xdel(log.stream, ids[gone])
    del values[gone]
    if deleted == "oldest" and noticed != "never":
        with pytest.raises(OffsetOutOfRange):
            read(bench, log, 0)
        return
    for _ in range(2):
        assert bench.run(log.bounds()).log_start == 0
        assert read(bench, log, 0)[0] == values
        cover(bench, log)


@pytest.mark.parametrize("covered", [True, False])
def test_a_reader_of_an_empty_log_that_is_a_queue_of_native_clients(bench: Bench, covered: bool) -> None:
    log = bench.log()
    for _ in range(3):
        bench.client.xdel(log.stream, bench.client.xadd(log.stream, {"value": "done"}))
        if covered:
            cover(bench, log)
    add(bench, log, "next")
    assert read(bench, log, 0)[0] == [b"next"]
    bench.client.xtrim(log.stream, maxlen=0, approximate=False)
    put(bench, log, b"last")
    with pytest.raises(OffsetOutOfRange):
        read(bench, log, 0)


def test_a_trim_of_the_first_native_entries_moves_the_log_start(bench: Bench) -> None:
    log = bench.log()
    for number in range(5):
        bench.client.execute_command("XADD", log.stream, "MAXLEN", "1", "*", "value", f"{number}")
    with pytest.raises(OffsetOutOfRange):
        read(bench, log, 0)

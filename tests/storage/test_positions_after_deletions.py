"""Positions of readers that wait at the log end, or before the first record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from korvet.offsets.packing import pack
from korvet.storage.log import state
from tests.api.batches import batch
from tests.storage.batches import decode
from tests.storage.test_batch_layout import append, pairs
from tests.support.logs import read_log

if TYPE_CHECKING:
    from korvet.storage.log.partition_log import PartitionLog
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

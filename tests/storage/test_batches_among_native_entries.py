"""storage.layout=batch: entries of native clients among those of batches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from korvet.observe.ordinals import LogOrdinals
from korvet.offsets.packing import entry_id, offset_of, pack
from tests.api.batches import batch, now_ms
from tests.storage.batches import decode
from tests.storage.conftest import Bench
from tests.storage.test_batch_layout import all_records, append, assignments, batched, pairs, placed, read
from tests.support.redis_server import calls_of

if TYPE_CHECKING:
    from korvet.log.values import Appended
    from tests.support.redis_server import Server


@assignments
@pytest.mark.parametrize("by_guard", [False, True], ids=["script", "guard"])
def test_offsets_of_deleted_entries_that_readers_saw(
    bench: Bench, assignment: str, *, by_guard: bool
) -> None:
    """A consumer goes on after the native entry that it saw: the next batch must not begin at its offset."""
    log = batched(bench, offset_assignment=assignment)
    if assignment == "clock":
        # Offsets ahead of the clock: the next batch begins directly after the entries that are there.
        bench.client.xadd(log.stream, {"native": "0"}, id=entry_id(pack(now_ms() + 60_000, 7)))
    last = max(bench.run(append(log, batch(pairs(b"a", b"b")))).base_offset + 1 for _ in range(2))
    if not by_guard:
        # No position is known to the broker.
        log.state.next_position = -1
    native_id = entry_id(last + 1 + log.bias)
    bench.client.xadd(log.stream, {"native": "1"}, id=native_id)
    assert decode(bench.run(read(log, last + 1)))[0].offset == last + 1
    bench.client.xdel(log.stream, native_id)
    appended = [bench.run(append(log, batch(pairs(b"c", b"d", b"e")))).base_offset for _ in range(2)]
    assert appended == [last + 2, last + 5]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == len(bench.run(all_records(log)))


@assignments
@pytest.mark.parametrize("change", ["leader", "server"])
def test_offsets_that_readers_saw_before_a_change(
    bench: Bench, server: Server, prefix: str, assignment: str, change: str
) -> None:
    """The next leader does not know what its readers have seen, nor does a broker whose server changed."""
    log = batched(bench, offset_assignment=assignment)
    if assignment == "clock":
        bench.client.xadd(log.stream, {"native": "0"}, id=entry_id(pack(now_ms() + 60_000, 7)))
    last = max(bench.run(append(log, batch(pairs(b"a", b"b")))).base_offset + 1 for _ in range(2))
    native_id = entry_id(last + 1 + log.bias)
    bench.client.xadd(log.stream, {"native": "1"}, id=native_id)
    assert decode(bench.run(read(log, last + 1)))[0].offset == last + 1
    bench.client.xdel(log.stream, native_id)
    other = Bench(server, prefix)
    if change == "leader":
        bench, log = other, other.store.logs.get(log.topic, 0)
    else:
        log.moved()
    appended = [bench.run(append(log, batch(pairs(b"c", b"d", b"e")))).base_offset for _ in range(2)]
    other.close()
    assert appended == [last + 2, last + 5]


def test_native_entries_are_records_of_their_own(bench: Bench) -> None:
    log = batched(bench)
    client, stream = bench.client, log.stream
    data = batch(pairs(*[b"v"] * 10))
    first = bench.run(append(log, data))
    native = [
        {"temperature": "21.5"},
        {"value": "x"},
        {"batch": "short"},
        {"batch": "as long as a record batch, and an application's nevertheless" * 9},
        {"batch": b"\xff\x02" * 99},
        {"batch": data, "more": "1"},
    ]
    ids = [client.xadd(stream, fields) for fields in native]
    second = bench.run(append(log, data))
    third = bench.run(append(log, data))
    end = third.base_offset + 10
    assert bench.run(log.queries.count(0, end)) == 36
    assert bench.run(log.queries.count(first.base_offset + 4, second.base_offset + 3)) == 6 + 6 + 3
    found = bench.run(all_records(log))
    assert [each.offset for each in found[10:16]] == [offset_of(one) for one in ids]
    values = [each.value for each in found[10:16]]
    assert values[:3] == [b'{"temperature":"21.5"}', b"x", b'{"batch":"short"}']
    assert all(value is not None and value.startswith(b'{"batch":') for value in values[3:])
    assert [each.value for each in found if each.value == b"v"] == [b"v"] * 30


@assignments
def test_a_native_batch_over_the_offsets_of_earlier_entries(bench: Bench, assignment: str) -> None:
    """Readers get each offset once, and neither counts nor the log start go back."""
    log = batched(bench, offset_assignment=assignment)
    data = batch(pairs(*[b"v"] * 300))
    sent = [bench.run(append(log, data)).base_offset for _ in range(3)]
    last = sent[2] + 309
    forged = placed(batch(pairs(*[b"w"] * 600)), last - 599)
    bench.client.xadd(log.stream, {"batch": forged}, id=entry_id(last, log.bias))
    later = bench.run(append(log, data)).base_offset

    def counts() -> list[int]:
        places = [sent[2], sent[2] + 299, sent[2] + 300, last - 5, last, last + 1, later, later + 300]
        return [bench.run(log.queries.count(sent[2], place)) for place in places]

    assert counts() == [0, 299, 300, 894, 899, 900, 900, 1_200]
    found = bench.run(all_records(log))
    assert [each.value for each in found if each.value == b"v"] == [b"v"] * 1_200
    assert [each.offset for each in found] == sorted({each.offset for each in found})
    assert bench.run(log.delete_before(sent[2] + 305, 1_000)) == sent[2] + 305
    bench.run(log.trimming.trim(None, 300, 0))
    assert bench.run(log.bounds()).log_start >= sent[2] + 305


@assignments
def test_records_deleted_from_within_a_batch_do_not_count(bench: Bench, assignment: str) -> None:
    log = batched(bench, offset_assignment=assignment)
    sent = [bench.run(append(log, batch(pairs(*[b"v"] * 10)))).base_offset for _ in range(3)]
    start = bench.run(log.delete_before(sent[1] + 4, 1_000))
    ends, positions = bench.run(
        LogOrdinals(bench.store.commands, log.topic, 0).positions(
            [(offset, None) for offset in (sent[0], sent[1], start, start + 1, sent[2])], 0
        )
    )
    assert (ends.log_start, ends.end_ordinal - ends.start_ordinal) == (start, 16)
    assert [ends.end_ordinal - one.ordinal for one in positions] == [16, 16, 16, 15, 10]
    counts = [bench.run(log.queries.count(offset, ends.log_end)) for offset in (0, sent[1], start, start + 1)]
    assert counts == [16, 16, 16, 15]
    assert bench.run(log.queries.count(sent[0], start)) == 0


def test_deleted_and_trimmed_entries(bench: Bench) -> None:
    log = batched(bench)
    sent = [bench.run(append(log, batch(pairs(*[b"v"] * (number + 1))))) for number in range(8)]
    ids = [one for one, _ in bench.client.xrange(log.stream)]
    bench.client.xdel(log.stream, ids[4])
    bench.client.xtrim(log.stream, minid=ids[2], approximate=False)
    bounds = bench.run(log.bounds())
    assert (bounds.log_start, bounds.entries) == (sent[2].base_offset, 5)
    assert bench.run(log.queries.count(0, bounds.log_end)) == 3 + 4 + 6 + 7 + 8
    assert bench.run(log.queries.count(sent[4].base_offset + 1, sent[5].base_offset + 2)) == 2
    # The index that was built again serves further appends.
    again = bench.run(append(log, batch(pairs(*[b"v"] * 5))))
    assert bench.run(log.queries.count(sent[7].base_offset, again.base_offset + 5)) == 13


def test_a_native_trim_costs_no_more_than_a_span(bench: Bench) -> None:
    log = batched(bench)
    sent = [bench.run(append(log, batch(pairs(*[b"v" * 50] * 300)))) for _ in range(50)]
    payload_bytes = bench.run(log.bounds()).payload_bytes
    bench.client.xtrim(log.stream, maxlen=20, approximate=False)
    before = calls_of(bench.client, "xrange")
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 6_000
    assert calls_of(bench.client, "xrange") - before < 10
    bounds = bench.run(log.bounds())
    assert (bounds.log_start, bounds.entries) == (sent[30].base_offset, 20)
    assert bounds.payload_bytes == payload_bytes * 20 // 50
    assert bench.run(log.queries.count(sent[35].base_offset + 7, sent[40].base_offset)) == 1_493


def test_native_writers_between_batches_in_flight(bench: Bench) -> None:
    log = batched(bench)
    bench.run(append(log, batch(pairs(b"first"))))
    far = (log.ends.log_end >> 10) + 5_000

    async def work() -> list[Appended]:
        appends = [append(log, batch(pairs(*[b"%d" % number] * 7))) for number in range(20)]
        waiting = asyncio.gather(*appends)
        await asyncio.sleep(0)
        # After the offsets that the broker assigned: the guard refuses, and all go by script in their order.
        bench.client.xadd(log.stream, {"f": "1"}, id=f"{far}-0")
        return list(await waiting)

    found = bench.run(work())
    records = bench.run(all_records(log))
    values = [each.value for each in records if each.key is not None][1:]
    assert values == [b"%d" % number for number in range(20) for _ in range(7)]
    offsets = {each.offset: each.value for each in records}
    assert all(offsets[one.base_offset + 6] == b"%d" % number for number, one in enumerate(found))
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 142

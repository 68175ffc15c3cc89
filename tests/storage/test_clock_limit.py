"""More than the 1,024 records per ms that the clock has offsets for: producers wait, nothing is refused."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import pytest

from korvet.log.values import Appended, Marked
from korvet.offsets.packing import entry_id
from korvet.records.control import ControlMarker
from korvet.records.kernel import encode_append_records, parse_batch
from korvet.redis.errors import StorageError, TopicGone
from tests.storage.batches import received
from tests.storage.proxy import until
from tests.support.logs import admit
from tests.support.received import ReceivedBatch
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.partition_log import PartitionLog
    from tests.storage.conftest import Bench

Outcome = Appended | StorageError
CAP_MS = 4
BATCH_MS = 2


@pytest.fixture
def log(bench: Bench) -> PartitionLog:
    bench.store.resources.lead_cap_ms = CAP_MS
    made = bench.log()
    bench.run(appended(made, [small(b"first")]))
    return made


def small(value: bytes) -> ReceivedBatch:
    return received([(b"key", value, 5)])


def tiny_records(count: int) -> ReceivedBatch:
    data = forms.whole_batch([forms.Record(None, b"", forms.BASE_MS)] * count)
    return ReceivedBatch(data, parse_batch(data, 0), None)


def send(
    log: PartitionLog,
    batch: ReceivedBatch,
    outcomes: list[Outcome],
    is_wanted: Callable[[], bool] = lambda: True,
) -> bool:
    return log.append(batch, None, admit, outcomes.append, followed=True, is_wanted=is_wanted)


async def appended(log: PartitionLog, batches: list[ReceivedBatch]) -> list[Appended]:
    outcomes: list[Outcome] = []
    for batch in batches:
        send(log, batch, outcomes)
    await until(lambda: len(outcomes) == len(batches))
    found = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
    assert found == outcomes
    return found


async def run_ahead(log: PartitionLog, ahead_ms: int) -> None:
    """Append a record after an entry of a native client, so far ahead of the clock that the next append has
    to wait for `ahead_ms`.
    """
    first_ms = log.links.clock.now_ms() + log.state.lead_cap_ms + ahead_ms
    await log.links.server.write.call("XADD", log.stream, entry_id(first_ms << 10), "value", "native")
    await appended(log, [small(b"ahead")])
    assert 0 < log.throttle_ms <= ahead_ms


def test_a_fast_producer_gets_all_records_in(bench: Bench, log: PartitionLog) -> None:
    batches = [tiny_records(BATCH_MS << 10) for _ in range(100)]
    found = bench.run(appended(log, batches))
    offsets = [one.base_offset for one in found]
    assert all(after - before >= BATCH_MS << 10 for before, after in itertools.pairwise(offsets))
    # The clock had offsets for them, but for the lead.
    taken_ms = found[-1].append_ms - found[0].append_ms
    assert taken_ms >= 100 * BATCH_MS - 2 * (CAP_MS + BATCH_MS)
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 1 + sum(
        batch.header.record_count for batch in batches
    )


def test_everything_after_an_append_that_waits_keeps_its_order(bench: Bench, log: PartitionLog) -> None:
    long = tiny_records(400 << 10)

    async def load() -> None:
        await run_ahead(log, 400)
        outcomes: list[Any] = []
        assert send(log, small(b"a"), outcomes)
        throttle_ms = log.throttle_ms
        assert 0 < throttle_ms <= 400
        assert send(log, long, outcomes)
        assert log.throttle_ms > throttle_ms
        log.append_own(encode_append_records([(b"key", b"own", 5)]), None, outcomes.append)
        log.mark(ControlMarker(7, 0, committed=True, coordinator_epoch=0), outcomes.append)
        assert send(log, small(b"b"), outcomes)
        assert not outcomes
        await until(lambda: len(outcomes) == 5)
        assert [type(one) for one in outcomes] == [Appended, Appended, Appended, Marked, Appended]
        a, many, own, _, b = outcomes
        assert a.base_offset < many.base_offset < own.base_offset < b.base_offset

    bench.run(load())


def test_closing_the_log_ends_the_wait(bench: Bench, log: PartitionLog) -> None:
    async def load() -> None:
        await run_ahead(log, 900)
        outcomes: list[Outcome] = []
        assert send(log, small(b"a"), outcomes)
        assert send(log, small(b"b"), outcomes)
        gone = TopicGone("t")
        log.close(gone)
        assert outcomes == [gone, gone]

    bench.run(load())


def test_a_producer_that_has_gone_gives_its_append_up(bench: Bench, log: PartitionLog) -> None:
    async def load() -> None:
        await run_ahead(log, 100)
        outcomes: list[Outcome] = []
        assert send(log, small(b"a"), outcomes, lambda: False)
        assert send(log, small(b"b"), outcomes)
        await until(lambda: len(outcomes) == 2)
        assert isinstance(outcomes[0], StorageError)
        assert isinstance(outcomes[1], Appended)

    bench.run(load())
    found = [fields[b"value"] for _, fields in bench.client.xrevrange(log.stream, count=2)]
    assert found == [b"b", b"ahead"]


def test_calls_in_flight_keep_their_order(bench: Bench, log: PartitionLog) -> None:
    """Records of the broker go alone, and several calls may be in flight."""

    async def load() -> None:
        await run_ahead(log, 50)
        outcomes: list[Outcome] = []
        for number in range(200):
            own = encode_append_records([(b"key", b"%d" % number, 5)] * 500)
            log.append_own(own, None, outcomes.append)
        await until(lambda: len(outcomes) == 200)
        assert all(isinstance(outcome, Appended) for outcome in outcomes)
        offsets = [outcome.base_offset for outcome in outcomes if isinstance(outcome, Appended)]
        assert offsets == sorted(offsets)

    bench.run(load())
    values = [fields[b"value"] for _, fields in bench.client.xrange(log.stream)][3:]
    assert values == [b"%d" % number for number in range(200) for _ in range(500)]


def test_a_lead_that_others_caused_is_not_waited_for(bench: Bench, log: PartitionLog) -> None:
    ahead_ms = int(time.time() * 1000) + 3_600_000
    bench.client.xadd(log.stream, {"a": "b"}, id=entry_id(ahead_ms << 10))
    found = bench.run(appended(log, [small(b"%d" % number) for number in range(20)]))
    assert found[0].base_offset > ahead_ms << 10
    assert log.throttle_ms == 0

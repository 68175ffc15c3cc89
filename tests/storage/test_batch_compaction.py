"""Compaction of a partition with storage.layout=batch: which batches are split, stay whole or go."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from korvet.log.compaction.compactor import Compactor, Pace
from korvet.offsets.packing import entry_id, offset_of
from korvet.records.compression import ZSTD, compress
from korvet.redis.errors import StorageFault
from tests.api.batches import batch
from tests.storage.compacting import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    RULES,
    Watched,
    assignments,
    compact,
    contents,
    newest,
)
from tests.storage.test_batch_layout import append as append_batch
from tests.storage.test_batch_layout import placed

if TYPE_CHECKING:
    from tests.storage.conftest import Bench


@assignments
@pytest.mark.parametrize("codec", [0, ZSTD])
def test_batches_keep_their_newest_records(bench: Bench, assignment: str, codec: int) -> None:
    log = bench.log(configs=COMPACT, offset_assignment=assignment, storage_layout="batch")
    chosen = random.Random(2)
    rows: list[tuple[bytes, bytes | None]] = [
        (b"key %d" % chosen.randrange(200), chosen.randbytes(200)) for _ in range(3000)
    ]
    rows[2990] = (rows[2990][0], None)
    offsets: list[int] = []
    for at in range(0, 3000, 60):
        data = batch(rows[at : at + 60], attributes=codec, compress=lambda plain: compress(codec, plain))
        base = bench.run(append_batch(log, data)).base_offset
        offsets += range(base, base + 60)
    native = bench.client.xadd(log.stream, {"key": rows[2999][0], "value": "newer"})
    bench.client.xgroup_create(log.stream, "g", "0")
    bench.client.xreadgroup("g", "c", {log.stream: ">"}, noack=True)
    before = bench.run(log.bounds())
    timed = [(key, value, 0) for key, value in rows]
    expected = newest(timed, offsets)
    del expected[offsets[2999]]
    expected[offset_of(native, log.bias)] = (rows[2999][0], b"newer")
    assert compact(bench, log) == 3001 - len(expected)
    assert contents(bench, log) == expected
    after = bench.run(log.bounds())
    assert (after.log_start, after.log_end, after.last_id) == (0, before.log_end, before.last_id)
    assert bench.client.xinfo_groups(log.stream)[0]["lag"] == 0
    kept = sorted(expected)
    for place in range(0, len(kept), 7):
        assert bench.run(log.queries.count(kept[place], log.ends.log_end)) == len(kept) - place
        assert bench.run(log.queries.count(0, kept[place] + 1)) == place + 1
    assert compact(bench, log) == 0
    # Appends and compactions continue as before.
    base = bench.run(
        append_batch(log, batch([(b"key 1", b"a"), (b"key 2", b"b"), (b"new", b"c")]))
    ).base_offset
    assert compact(bench, log) == 2
    left = contents(bench, log)
    assert len(left) == len(expected) + 1
    assert left[base + 2] == (b"new", b"c")


def test_batches_without_remaining_records_are_removed(bench: Bench) -> None:
    log = bench.log(configs=COMPACT, storage_layout="batch")
    rows = [(b"key %d" % number, b"v" * 100) for number in range(50)]
    for _ in range(200):
        bench.run(append_batch(log, batch(rows)))
    bench.client.xgroup_create(log.stream, "g", "0")
    [[_, entries]] = bench.client.xreadgroup("g", "c", {log.stream: ">"}, count=3)
    # A batch of which some records stay is kept whole while it is pending in a group.
    bench.run(append_batch(log, batch([(b"only here", b""), *rows[:2]])))
    before = bench.client.memory_usage(log.stream, samples=0)
    assert compact(bench, log) == 199 * 50 + 2
    assert bench.client.xlen(log.stream) == 2
    assert bench.client.memory_usage(log.stream, samples=0) < before / 50
    pending = bench.client.xpending_range(log.stream, "g", "-", "+", 10)
    assert [one["message_id"] for one in pending] == [name for name, _ in entries]


def test_a_batch_that_would_grow_in_pieces_stays_whole(bench: Bench) -> None:
    log = bench.log(configs=COMPACT, storage_layout="batch")
    rows = [(b"%d" % number, b"") for number in range(100)]
    bench.run(append_batch(log, batch(rows)))
    bench.run(append_batch(log, batch(rows[::2])))
    compact(bench, log)
    assert bench.client.xlen(log.stream) == 2
    assert len(contents(bench, log)) == 150
    # Once most of its records are superseded, it is reduced to the others.
    bench.run(append_batch(log, batch(rows[:99])))
    compact(bench, log)
    assert [key for key, _ in contents(bench, log).values()] == [b"99", *(key for key, _ in rows[:99])]


@pytest.mark.parametrize("kind", ["batch", "native", "native without an offset"])
def test_an_entry_after_deleted_ones_stays(bench: Bench, kind: str) -> None:
    log = bench.log(configs=COMPACT, storage_layout="batch")
    bases = [bench.run(append_batch(log, batch([(b"a", b"old")]))).base_offset for _ in range(3)]
    if kind != "batch":
        name = "*" if kind == "native" else f"{bases[2] >> 10}-5000"
        kept = bench.client.xadd(log.stream, {"temperature": "21"}, name)
    else:
        kept = entry_id(bench.run(append_batch(log, batch([(b"b", b"kept")]))).base_offset).encode()
    newest_of_a = bench.run(append_batch(log, batch([(b"a", b"new")]))).base_offset
    # A Redis application deletes an entry that the compaction has found to be superseded.
    commands = Watched(
        bench.store,
        "korvet_shadow_begin",
        lambda: bench.client.xdel(log.stream, entry_id(bases[2])),
    )
    bench.run(Compactor(commands, log, Pace(1e12), 1 << 27).compact(RULES, NOW_MS))
    names = [name for name, _ in bench.client.xrange(log.stream)]
    assert names == [kept, entry_id(newest_of_a).encode()]


@pytest.mark.parametrize("count", [100, 9000])
def test_deleted_keys_do_not_come_back_with_a_whole_batch(bench: Bench, count: int) -> None:
    log = bench.log(configs=COMPACT, storage_layout="batch")
    keys = [b"%d" % number for number in range(count)]
    bench.run(append_batch(log, batch([(key, b"") for key in keys])))
    bench.run(append_batch(log, batch([(b"other", b"")])))
    # Without these keys, the batch takes more memory.
    bench.run(append_batch(log, batch([(key, None) for key in keys[::2]])))
    bench.run(append_batch(log, batch([(b"newest", b"")])))
    compact(bench, log)
    compact(bench, log, now_ms=NOW_MS + DAY_MS)
    assert [key for key, _ in contents(bench, log).values()] == [*keys[1::2], b"other", b"newest"]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == count // 2 + 2


def test_a_pending_batch_stays_whole(bench: Bench) -> None:
    log = bench.log(configs=COMPACT, storage_layout="batch")
    base = bench.run(append_batch(log, batch([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]))).base_offset
    bench.client.xgroup_create(log.stream, "g", "0")
    [[_, [(name, fields)]]] = bench.client.xreadgroup("g", "c", {log.stream: ">"})
    bench.run(append_batch(log, batch([(b"c", b"2")])))
    compact(bench, log)
    assert dict(bench.client.xrange(log.stream))[name] == fields
    assert list(contents(bench, log))[:3] == [base, base + 1, base + 2]
    assert bench.client.xack(log.stream, "g", name) == 1


@pytest.mark.parametrize("same_batch", [False, True])
def test_a_deleted_key_does_not_come_back_with_a_pending_batch(bench: Bench, same_batch: bool) -> None:
    log = bench.log(configs=COMPACT, storage_layout="batch")
    rows: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"b", b"1")]
    tombstone: list[tuple[bytes, bytes | None]] = [(b"a", None)]
    bench.run(append_batch(log, batch([*rows, *tombstone, (b"c", b"1")] if same_batch else rows)))
    bench.client.xgroup_create(log.stream, "g", "0")
    [[_, [(name, _)]]] = bench.client.xreadgroup("g", "c", {log.stream: ">"})
    if not same_batch:
        bench.run(append_batch(log, batch(tombstone)))
    bench.run(append_batch(log, batch([(b"newest", b"1")])))
    for days in range(3):
        compact(bench, log, now_ms=NOW_MS + days * DAY_MS)
        state = dict(contents(bench, log).values())
        assert state.pop(b"a") is None
        assert state[b"b"] == b"1"
    bench.client.xack(log.stream, "g", name)
    # The record goes first, the tombstone after its time.
    for days in range(3, 6):
        compact(bench, log, now_ms=NOW_MS + days * DAY_MS)
        assert dict(contents(bench, log).values()).get(b"a") is None
    left = [key for key, _ in contents(bench, log).values()]
    assert left == ([b"b", b"a", b"c", b"newest"] if same_batch else [b"b", b"newest"])


def test_a_pending_batch_stays_whole_after_many_pending_entries_that_are_gone(bench: Bench) -> None:
    log = bench.log(configs=COMPACT, storage_layout="batch")
    bench.run(append_batch(log, batch([(b"first", b"1")])))
    for _ in range(150):
        bench.run(append_batch(log, batch([(b"a", b"1")])))
    data = batch([(b"b", b"1" * 100), (b"c", b"1" * 100), (b"d", b"1" * 100)])
    bench.run(append_batch(log, data))
    bench.client.xgroup_create(log.stream, "g", "0")
    [[_, entries]] = bench.client.xreadgroup("g", "c", {log.stream: ">"})
    compact(bench, log)
    assert len(contents(bench, log)) == 5
    bench.run(append_batch(log, batch([(b"c", b"2")])))
    compact(bench, log)
    name, fields = entries[-1]
    assert dict(bench.client.xrange(log.stream))[name] == fields


def test_a_batch_that_a_group_receives_while_it_is_split_stays_whole(bench: Bench) -> None:
    log = bench.log(configs=COMPACT, storage_layout="batch")
    data = batch([(b"a", b"1" * 100), (b"b", b"1" * 100), (b"c", b"1" * 100)])
    bench.run(append_batch(log, data))
    bench.run(append_batch(log, batch([(b"b", b"2")])))
    bench.client.xgroup_create(log.stream, "g", "0")
    received = []

    def deliver() -> None:
        received.extend(bench.client.xreadgroup("g", "c", {log.stream: ">"}, count=1)[0][1])

    commands = Watched(bench.store, "korvet_shadow_swap", deliver)
    with pytest.raises(StorageFault, match="a group received batches"):
        bench.run(Compactor(commands, log, Pace(1e12), 1 << 27).compact(RULES, NOW_MS))
    compact(bench, log)
    ((name, fields),) = received
    assert bench.client.xrange(log.stream)[0] == (name, fields)
    bench.client.xack(log.stream, "g", name)
    assert bench.client.xpending(log.stream, "g")["pending"] == 0


@assignments
@pytest.mark.parametrize("clean", [False, True])
def test_a_native_batch_over_the_offsets_of_earlier_entries_stays(
    bench: Bench, assignment: str, *, clean: bool
) -> None:
    log = bench.log(configs=COMPACT, offset_assignment=assignment, storage_layout="batch")
    first = bench.run(append_batch(log, batch([(b"a%d" % number, b"v") for number in range(20)]))).base_offset
    if clean:
        assert compact(bench, log) == 0
    last = first + 24
    forged = placed(batch([(b"b%d" % number, b"v") for number in range(20)]), last - 19)
    bench.client.xadd(log.stream, {"batch": forged}, id=entry_id(last, log.bias))
    rows = [(b"b%d" % number, b"w") for number in range(0, 20, 2)]
    rows += [(b"a%d" % number, b"w") for number in range(10)]
    bench.run(append_batch(log, batch(rows)))
    assert compact(bench, log) == 10
    assert compact(bench, log, now_ms=NOW_MS + 1) == 0
    entries = bench.client.xrange(log.stream)
    assert [fields for _, fields in entries if fields == {b"batch": forged}]
    assert {b"a%d" % number for number in range(20)} <= {key for key, _ in contents(bench, log).values()}

"""Compaction of a partition on a real server: which records go, and that clients notice nothing else."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from korvet.log.compaction.compactor import CompactionRules, Compactor, Pace
from korvet.offsets.packing import entry_id
from korvet.records.kernel import encode_append_records
from korvet.redis.commands import Commands
from tests.storage.batches import decode
from tests.storage.compacting import (
    ALL,
    DAY_MS,
    NOW_MS,
    RULES,
    Row,
    Watched,
    append,
    assignments,
    compact,
    compacted_log,
    compactor,
    contents,
    newest,
    shadows,
)
from tests.support.logs import append_own, read_log
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.partition_log import PartitionLog
    from tests.storage.conftest import Bench


@assignments
def test_the_newest_record_of_each_key_stays_where_it_was(bench: Bench, assignment: str) -> None:
    log = compacted_log(bench, assignment)
    chosen = random.Random(1)
    rows: list[Row] = [
        (b"key %d" % chosen.randrange(300), b"%d" % number * chosen.randrange(1, 40), 5 * number)
        for number in range(3000)
    ]
    offsets = [offset for at in range(0, 3000, 700) for offset in append(bench, log, rows[at : at + 700])]
    before = bench.run(log.bounds())
    added = bench.client.xinfo_stream(log.stream)["entries-added"]
    expected = newest(rows, offsets)
    assert compact(bench, log) == 3000 - len(expected)
    assert contents(bench, log) == expected
    after = bench.run(log.bounds())
    assert (after.log_start, after.log_end, after.last_id) == (0, before.log_end, before.last_id)
    assert after.entries == len(expected)
    info = bench.client.xinfo_stream(log.stream)
    assert info["entries-added"] == added
    gone = max(set(offsets) - set(expected))
    assert info["max-deleted-entry-id"] == entry_id(gone, log.bias).encode()
    assert shadows(bench) == []
    # Counts and times are as exact as before.
    kept = sorted(expected)
    assert bench.run(log.queries.count(0, log.ends.log_end)) == len(kept)
    times = {offset: row[2] for row, offset in zip(rows, offsets, strict=True)}
    for place in range(0, len(kept), 37):
        assert bench.run(log.queries.count(kept[place], log.ends.log_end)) == len(kept) - place
        wanted = times[kept[place]]
        assert bench.run(log.queries.offset_for_timestamp(wanted)) == (kept[place], wanted)
    # Nothing is left to do until there are new records.
    assert compact(bench, log) == 0
    more = append(bench, log, [(b"key 7", b"new", 99_999)])
    assert compact(bench, log) == 1
    assert contents(bench, log)[more[0]] == (b"key 7", b"new")
    assert len(contents(bench, log)) == len(expected)


def test_a_consumer_before_the_remaining_records_continues(bench: Bench) -> None:
    log = compacted_log(bench, "dense")
    append(bench, log, [(b"a", b"%d" % number, 0) for number in range(500)])
    assert compact(bench, log) == 499
    fetched = bench.run(read_log(log, 17, ALL))
    assert [record.offset for record in decode(fetched.data)] == [499]
    append(bench, log, [(b"b", b"", 0)])
    assert bench.run(log.bounds()).log_start == 0
    # A native XTRIM moves the log start, as without compaction.
    bench.client.xdel(log.stream, entry_id(499, 1))
    assert bench.run(log.bounds()).log_start == 500


@assignments
def test_tombstones_are_removed_after_delete_retention_ms(bench: Bench, assignment: str) -> None:
    log = compacted_log(bench, assignment)
    offsets = append(bench, log, [(b"a", b"1", 0), (b"a", None, 0), (b"b", b"2", 0)])
    assert compact(bench, log) == 1
    assert contents(bench, log) == {offsets[1]: (b"a", None), offsets[2]: (b"b", b"2")}
    assert compact(bench, log, now_ms=NOW_MS + DAY_MS - 1) == 0
    assert compact(bench, log, now_ms=NOW_MS + DAY_MS) == 1
    assert contents(bench, log) == {offsets[2]: (b"b", b"2")}
    bounds = bench.run(log.bounds())
    assert (bounds.log_start, bounds.log_end) == (0, offsets[2] + 1)


@assignments
def test_the_newest_record_stays_although_it_is_a_tombstone(bench: Bench, assignment: str) -> None:
    log = compacted_log(bench, assignment)
    offsets = append(bench, log, [(b"a", b"1", 0), (b"b", b"2", 0), (b"b", None, 0), (b"a", None, 0)])
    assert compact(bench, log) == 2
    assert compact(bench, log, now_ms=NOW_MS + DAY_MS) == 1
    assert contents(bench, log) == {offsets[3]: (b"a", None)}
    work = compactor(bench, log)
    assert bench.run(work.compact(RULES, NOW_MS + 9 * DAY_MS)) == 0
    assert not work.has_run, "A newest record that stays must not make a compaction due."
    more = append(bench, log, [(b"c", b"3", 0)])
    assert compact(bench, log, now_ms=NOW_MS + 9 * DAY_MS) == 1
    assert contents(bench, log) == {more[0]: (b"c", b"3")}
    assert bench.run(log.bounds()).log_start == 0
    later = append(bench, log, [(b"d", b"4", 0)])
    bench.client.xdel(log.stream, entry_id(more[0], log.bias))
    assert bench.run(log.bounds()).log_start == later[0]


def test_the_newest_record_stays_although_it_has_no_key(bench: Bench) -> None:
    log = compacted_log(bench)
    offsets = append(bench, log, [(None, b"1", 0), (b"a", b"2", 0), (None, b"3", 0)])
    for days in range(3):
        compact(bench, log, now_ms=NOW_MS + days * DAY_MS)
        assert list(contents(bench, log)) == offsets[1:]


@pytest.mark.each_server
def test_groups_notice_nothing(bench: Bench) -> None:
    log = compacted_log(bench)
    client, stream = bench.client, log.stream
    client.xgroup_create(stream, "behind", "0", mkstream=True)
    client.xgroup_create(stream, "idle", "0")
    offsets = append(bench, log, [(b"%d" % (number % 7), b"%d" % number, 0) for number in range(1000)])
    for consumer in ("one", "two"):
        client.xreadgroup("behind", consumer, {stream: ">"}, count=150)
    client.xreadgroup("behind", "one", {stream: ">"}, count=1)
    client.xgroup_createconsumer(stream, "behind", "quiet")
    client.xack(stream, "behind", *[entry_id(offset) for offset in offsets[10:90]])
    client.xclaim(stream, "behind", "two", 0, [entry_id(offsets[3])], retrycount=9)
    # A pending entry whose record stays.
    client.xgroup_create(stream, "ahead", entry_id(offsets[995]))
    client.xreadgroup("ahead", "three", {stream: ">"})

    def seen() -> Any:
        pending = {
            name: client.xpending_range(stream, name, "-", "+", 5000) for name in ("behind", "ahead", "idle")
        }
        for rows in pending.values():
            for row in rows:
                del row["time_since_delivered"]
        groups = client.xinfo_groups(stream)
        for group in groups:
            del group["lag"]
        return pending, groups, sorted(one["name"] for one in client.xinfo_consumers(stream, "behind"))

    idle_ms = client.xpending_range(stream, "behind", "-", "+", 1)[0]["time_since_delivered"]
    before = seen()
    assert compact(bench, log) == 993
    assert seen() == before
    assert client.xlen(stream) == 7
    assert client.xpending_range(stream, "behind", "-", "+", 1)[0]["time_since_delivered"] >= idle_ms
    ahead = next(group for group in client.xinfo_groups(stream) if group["name"] == b"ahead")
    assert ahead["lag"] == 0
    # The reader continues with the records that are left after its position.
    [[_, entries]] = client.xreadgroup("behind", "one", {stream: ">"})
    assert [fields[b"value"] for _, fields in entries] == [b"%d" % number for number in range(993, 1000)]
    assert client.xack(stream, "behind", entry_id(offsets[0])) == 1


@pytest.mark.each_server
def test_no_group_of_the_shadow_has_read_more_than_was_added(bench: Bench) -> None:
    # Newer Redis lowers a higher number, so the lag of the group would be wrong.
    log = compacted_log(bench)
    client, stream = bench.client, log.stream
    append(bench, log, [(b"%d" % (number % 7), b"%d" % number, 0) for number in range(1000)])
    client.xgroup_create(stream, "g", "0")
    client.xreadgroup("g", "c", {stream: ">"}, count=1000, noack=True)
    added, checked = 0, []
    with client.monitor() as monitor:
        assert compact(bench, log) == 993
        client.echo("end of the compaction")
        for seen in monitor.listen():
            words = seen["command"].split()
            if words[0] == "ECHO":
                break
            if seen["client_type"] != "lua" or not any(word.endswith(":compact") for word in words):
                continue
            if words[0] == "XADD":
                added += 1
            elif words[0] == "XSETID":
                added = int(words[words.index("ENTRIESADDED") + 1])
            elif "ENTRIESREAD" in words:
                checked.append((int(words[words.index("ENTRIESREAD") + 1]), added))
    assert checked
    assert all(read <= added for read, added in checked)
    [group] = client.xinfo_groups(stream)
    assert (group["entries-read"], group["lag"]) == (1000, 0)


@pytest.mark.parametrize("before", ["copy", "tidy", "swap"])
@pytest.mark.each_server
def test_groups_change_during_a_compaction(bench: Bench, before: str) -> None:
    log = compacted_log(bench)
    client, stream = bench.client, log.stream
    offsets = append(bench, log, [(b"%d" % (number % 2500), b"", 0) for number in range(5000)])
    for name in ("g", "leaves", "quiet"):
        client.xgroup_create(stream, name, "0")
    for consumer in ("one", "two", "three"):
        client.xreadgroup("g", consumer, {stream: ">"}, count=1300)
    client.xreadgroup("quiet", "c", {stream: ">"}, count=5000)
    client.xgroup_createconsumer(stream, "leaves", "c")

    def names(places: range) -> list[str]:
        return [entry_id(offsets[place]) for place in places]

    def pending(name: str) -> list[Any]:
        rows = client.xpending_range(stream, name, "-", "+", 9000)
        return [(one["message_id"], one["consumer"], one["times_delivered"]) for one in rows]

    seen: list[Any] = []

    def act() -> None:
        client.xack(stream, "g", *names(range(1000, 2600, 3)))
        client.xclaim(stream, "g", "one", 0, names(range(2700, 2800)))
        client.xgroup_delconsumer(stream, "g", "three")
        client.xreadgroup("g", "four", {stream: ">"}, count=600)
        client.xgroup_destroy(stream, "leaves")
        client.xgroup_create(stream, "comes", names(range(4000, 4001))[0])
        client.xreadgroup("comes", "c", {stream: ">"}, count=10)
        seen.extend((client.xinfo_groups(stream), pending("g"), pending("comes"), pending("quiet")))

    commands = Watched(bench.store, f"korvet_shadow_{before}", act)
    assert bench.run(Compactor(commands, log, Pace(1e12), 1 << 27).compact(RULES, NOW_MS)) == 2500
    groups = client.xinfo_groups(stream)
    for group in (*groups, *seen[0]):
        del group["lag"]
    assert groups == seen[0]
    assert [pending(name) for name in ("g", "comes", "quiet")] == seen[1:]
    assert {one["name"] for one in client.xinfo_consumers(stream, "g")} == {b"one", b"two", b"four"}
    assert client.xlen(stream) == 2500
    assert shadows(bench) == []


@pytest.mark.parametrize("change", ["owners", "set back", "delivered again"])
@pytest.mark.each_server
def test_pending_entries_change_but_not_their_counts(bench: Bench, change: str) -> None:
    log = compacted_log(bench)
    client, stream = bench.client, log.stream
    names = [
        entry_id(offset)
        for offset in append(bench, log, [(b"%d" % (number % 50), b"", 0) for number in range(100)])
    ]
    client.xgroup_create(stream, "g", names[49])
    for consumer in ("one", "two"):
        client.xreadgroup("g", consumer, {stream: ">"}, count=4)
    client.xack(stream, "g", names[52])
    time.sleep(1.1)
    seen: list[Any] = []

    def pending() -> list[Any]:
        rows = client.xpending_range(stream, "g", "-", "+", 100)
        return [(one["message_id"], one["consumer"], one["times_delivered"]) for one in rows]

    def act() -> None:
        summary = client.xpending(stream, "g")
        if change == "owners":
            client.xclaim(stream, "g", "two", 0, [names[51]])
            client.xclaim(stream, "g", "one", 0, [names[55]])
        elif change == "delivered again":
            client.xreadgroup("g", "one", {stream: "0"})
        else:
            client.xack(stream, "g", names[51])
            client.xgroup_setid(stream, "g", names[51])
            client.xreadgroup("g", "one", {stream: ">"}, count=1)
            client.xgroup_setid(stream, "g", names[57])
        assert client.xpending(stream, "g") == summary
        seen.extend(pending())

    commands = Watched(bench.store, "korvet_shadow_swap", act)
    assert bench.run(Compactor(commands, log, Pace(1e12), 1 << 27).compact(RULES, NOW_MS)) == 50
    assert pending() == seen


@pytest.mark.each_server
def test_memory_comes_back(bench: Bench) -> None:
    log = compacted_log(bench)
    other = compacted_log(bench, name="other")
    value = b"v" * 100
    live: list[Row] = [(b"live %d" % number, value, 0) for number in range(400)]
    rows: list[Row] = [(b"key %d" % (number % 400), value, 0) for number in range(20_000)]
    for at in range(0, 20_000, 50):
        # One record of fifty stays, in every node of the stream.
        append(bench, log, [*rows[at : at + 49], live[at // 50]])
    append(bench, log, rows[-400:])
    append(bench, other, live)
    append(bench, other, rows[-400:])

    def usage(of: PartitionLog) -> int:
        return sum(bench.client.memory_usage(key, samples=0) or 0 for key in of.keys)

    used, before, least = bench.client.info("memory")["used_memory"], usage(log), usage(other)
    assert compact(bench, log) > 19_000
    deleted = before - least
    assert before - usage(log) >= 0.85 * deleted

    def freed() -> bool:
        return used - bench.client.info("memory")["used_memory"] >= 0.85 * deleted

    until(freed, 20, "the server's memory shrinks")


def test_appends_and_reads_continue_during_a_compaction(bench: Bench) -> None:
    log = compacted_log(bench)
    rows: list[Row] = [(b"%d" % (number % 50), b"%d" % number, 0) for number in range(6000)]
    offsets = append(bench, log, rows[:4000])

    async def write() -> None:
        for row in rows[4000:]:
            offsets.append((await append_own(log, encode_append_records([row]))).base_offset)

    async def both() -> int:
        writing = asyncio.create_task(write())
        removed = await compactor(bench, log).compact(RULES, NOW_MS)
        assert not writing.done(), "there was nothing to overtake"
        assert (await read_log(log, 0, ALL)).record_count
        await writing
        return removed

    removed = bench.run(both())
    assert offsets == sorted(set(offsets))
    left = contents(bench, log)
    assert len(left) == 6000 - removed
    assert removed >= 3900
    assert [value for _, value in left.values()] == [rows[offsets.index(offset)][1] for offset in left]
    assert set(newest(rows, offsets)) <= set(left)
    assert compact(bench, log) == len(left) - 50


def test_blocked_native_readers_get_every_entry(bench: Bench) -> None:
    log = compacted_log(bench)
    append(bench, log, [(b"k", b"%d" % number, 0) for number in range(1000)])
    bench.client.xgroup_create(log.stream, "g", "$")

    def is_blocked() -> bool:
        return bench.client.info("clients")["blocked_clients"] > 0

    async def blocked(read: Callable[[], Any]) -> Any:
        waiting = asyncio.create_task(asyncio.to_thread(read))
        await asyncio.to_thread(until, is_blocked, 20, "the reader waits")
        assert await compactor(bench, log).compact(RULES, NOW_MS) > 0
        await append_own(log, encode_append_records([(b"k", b"new", 0)]))
        [[_, entries]] = await waiting
        return [fields[b"value"] for _, fields in entries]

    read = lambda: bench.client.xread({log.stream: "$"}, block=20_000)  # noqa: E731
    assert bench.run(blocked(read)) == [b"new"]
    grouped = lambda: bench.client.xreadgroup("g", "c", {log.stream: ">"}, block=20_000)  # noqa: E731
    bench.client.xgroup_setid(log.stream, "g", "$")
    assert bench.run(blocked(grouped)) == [b"new"]


def test_records_that_are_young_are_left_alone(bench: Bench) -> None:
    log = compacted_log(bench)
    offsets = append(bench, log, [(b"k", b"%d" % number, NOW_MS - 1000 + number) for number in range(1000)])
    rules = CompactionRules(DAY_MS, 500, None, 0.0)
    assert compact(bench, log, rules) == 500
    assert list(contents(bench, log)) == offsets[500:]


def test_when_a_log_is_compacted(bench: Bench) -> None:
    log = compacted_log(bench)
    append(bench, log, [(b"%d" % number, b"", NOW_MS) for number in range(100)])
    assert compact(bench, log) == 0
    append(bench, log, [(b"%d" % number, b"", NOW_MS) for number in range(50)])
    # 50 of 150.
    assert compact(bench, log, CompactionRules(DAY_MS, 0, None, 0.5)) == 0
    assert compact(bench, log, CompactionRules(DAY_MS, 0, 1000, 0.5), NOW_MS + 1000) == 0
    assert compact(bench, log, CompactionRules(DAY_MS, 0, 1000, 0.5), NOW_MS + 1001) == 50
    append(bench, log, [(b"%d" % (number % 10), b"", NOW_MS) for number in range(101)])
    assert compact(bench, log, CompactionRules(DAY_MS, 0, None, 0.5)) == 101


def test_history_is_kept_by_size(bench: Bench) -> None:
    log = compacted_log(bench, "dense")
    for number in range(100):
        append(bench, log, [(b"k", b"v" * 95, NOW_MS)] * 50 + [(b"other %d" % number, b"", NOW_MS)])
    total = bench.run(log.bounds()).payload_bytes
    kept = CompactionRules(DAY_MS, 0, None, 0.5, DAY_MS, total + 1)
    assert compact(bench, log, kept) == 0
    assert compact(bench, log, CompactionRules(DAY_MS, 0, None, 0.5, DAY_MS, total // 4)) > 3000
    left = contents(bench, log)
    assert sum(value != b"" for _, value in left.values()) == pytest.approx(50 * 25, abs=2)
    assert len({key for key, _ in left.values()}) == 101


def test_history_is_kept_for_a_time(bench: Bench) -> None:
    log = compacted_log(bench, "dense")
    append(bench, log, [(b"k", b"%d" % number, NOW_MS - 1000 + number) for number in range(1000)])
    # Also if the records that are left are large.
    rules = CompactionRules(DAY_MS, 0, None, 0.5, 100, 1 << 30)
    assert compact(bench, log, rules) == 900
    assert list(contents(bench, log)) == list(range(900, 1000))


def test_a_small_map_takes_several_compactions(bench: Bench) -> None:
    log = compacted_log(bench)
    rows: list[Row] = [(b"key %d" % (number % 1000), b"%d" % number, 0) for number in range(4000)]
    offsets = append(bench, log, rows)
    removed = [compact(bench, log, map_bytes=200 * 300) for _ in range(20)]
    assert sum(removed) == 3000
    assert removed[0] == 0
    assert contents(bench, log) == newest(rows, offsets)


def test_entries_of_redis_applications_stay(bench: Bench) -> None:
    log = compacted_log(bench)
    append(bench, log, [(b"k", b"1", 0)] * 10)
    own = bench.client.xadd(log.stream, {"temperature": "21"})
    keyed = bench.client.xadd(log.stream, {"key": "k", "value": "native"})
    keyless = bench.client.xadd(log.stream, {"value": "keyless"})
    # An entry with more fields than a script can pass to XADD, and one without an offset.
    wide = bench.client.xadd(log.stream, {f"f{number}": "" for number in range(9000)})
    ms = int(wide.partition(b"-")[0])
    unaddressable = bench.client.xadd(log.stream, {"key": "k", "value": "x"}, id=f"{ms}-5000")
    assert compact(bench, log) == 11
    assert [name for name, _ in bench.client.xrange(log.stream)] == [own, keyed, wide, unaddressable]
    assert keyless not in dict(bench.client.xrange(log.stream))
    last = bench.client.xadd(log.stream, {f"f{number}": "" for number in range(9000)})
    more = append(bench, log, [(b"k", b"2", 0)])
    assert compact(bench, log) == 1
    names = [own, wide, unaddressable, last, entry_id(more[0]).encode()]
    assert [name for name, _ in bench.client.xrange(log.stream)] == names
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 5


@pytest.mark.each_server
def test_a_deleted_entry_with_many_fields_does_not_come_back(bench: Bench) -> None:
    log = compacted_log(bench)
    append(bench, log, [(b"k", b"1", 0), (b"k", b"2", 0)])
    wide = bench.client.xadd(log.stream, {f"field {number}": "" for number in range(4000)})

    class Deleting(Commands):
        async def call(self, *args: bytes | str | int) -> Any:
            if args[0] == "XADD":
                bench.client.xdel(log.stream, wide)
            return await super().call(*args)

    commands = Deleting(bench.store.commands.keyspace, bench.store.router)
    assert bench.run(Compactor(commands, log, Pace(1e12), 1 << 27).compact(RULES, NOW_MS)) == 1
    assert bench.client.xlen(log.stream) == 1
    assert [value for _, value in contents(bench, log).values()] == [b"2"]


@assignments
def test_records_are_deleted_from_a_log_that_a_compaction_and_xdel_emptied(
    bench: Bench, assignment: str
) -> None:
    log = compacted_log(bench, assignment)
    first = append(bench, log, [(b"k", None, 0) for _ in range(10)])
    rules = CompactionRules(0, 0, None, 0.0)
    newest = entry_id(first[-1], log.bias)
    commands = Watched(bench.store, "korvet_shadow_begin", lambda: bench.client.xdel(log.stream, newest))
    assert bench.run(Compactor(commands, log, Pace(1e12), 1 << 20).compact(rules, NOW_MS)) == 9
    assert bench.run(log.bounds()).entries == 0
    assert bench.run(log.delete_before(first[4], 1_000)) == first[4]
    assert bench.run(log.bounds()).log_start == first[4]
    assert bench.run(log.delete_before(first[2], 1_000)) == first[4]
    (later,) = append(bench, log, [(b"k", b"v", 0)])
    assert bench.run(log.bounds()).log_start == log.ends.log_start == first[4]
    assert bench.run(log.delete_before(None, 1_000)) == later + 1 == bench.run(log.bounds()).log_start

"""The tail cache: the batches that it holds, returns and drops."""

from __future__ import annotations

import pytest

from korvet.log.tail_cache import BATCH_OVERHEAD_BYTES, TailBudget, TailCache, as_stored
from korvet.records import kernel
from tests.api.batches import LZ4, ZSTD, batch, now_ms, read

PLENTY = 1 << 40


def values(*texts: bytes, **options: object) -> bytes:
    return batch([(None, text) for text in texts], **options)  # type: ignore[arg-type]


def sized(size_bytes: int) -> bytes:
    """A batch of exactly this size."""
    made = values(b"v" * (size_bytes - len(values(b"")) - 4))
    made = values(b"v" * (size_bytes - len(values(b"")) - 4 + size_bytes - len(made)))
    assert len(made) == size_bytes
    return made


@pytest.fixture
def cache() -> TailCache:
    return TailCache(TailBudget())


def extend(
    cache: TailCache, base_offset: int, record_count: int, previous_end: int, sent: bytes | None
) -> None:
    """Extend the cache by an append of a producer's records."""
    batch = None if sent is None else kernel.place_batch(sent, base_offset, 0)
    cache.extend(base_offset, record_count, previous_end, batch)


def records(cache: TailCache, offset: int, max_bytes: int = PLENTY) -> list[tuple[int, bytes | None]] | None:
    found = cache.read(offset, max_bytes, None)
    return None if found is None else [(at, value) for at, _, value in read(b"".join(found))]


def test_nothing_is_known_at_first(cache):
    assert [cache.read(offset, PLENTY, None) for offset in (-2, -1, 0, 5)] == [None] * 4


def test_batches_get_their_place(cache):
    sent = values(b"a", b"b")
    cache.extend(1000, 2, 0, kernel.place_batch(sent, 1000, 7))
    (given,) = cache.read(0, PLENTY, None)
    assert given[:8] == (1000).to_bytes(8, "big")
    assert given[12:16] == (7).to_bytes(4, "big")
    assert given[8:12] + given[16:] == sent[8:12] + sent[16:]
    assert records(cache, 0) == [(1000, b"a"), (1001, b"b")]


def test_gaps_between_batches_are_known_to_be_empty(cache):
    extend(cache, 1000, 1, 10, values(b"a"))
    extend(cache, 5000, 1, 1001, values(b"b"))
    assert (cache.start, cache.end) == (10, 5001)
    assert records(cache, 9) is None
    assert records(cache, 10) == records(cache, 1000) == [(1000, b"a"), (5000, b"b")]
    assert records(cache, 1001) == records(cache, 4999) == records(cache, 5000) == [(5000, b"b")]
    assert records(cache, 5001) is None


def test_from_within_a_batch_all_of_it(cache):
    extend(cache, 10, 3, 0, values(b"a", b"b", b"c"))
    assert records(cache, 12) == [(10, b"a"), (11, b"b"), (12, b"c")]


def test_another_writers_entry_begins_the_range_anew(cache):
    extend(cache, 10, 1, 0, values(b"a"))
    extend(cache, 20, 1, 15, values(b"b"))
    assert (cache.start, cache.end) == (15, 21)
    assert records(cache, 10) is None
    assert records(cache, 14) is None
    assert records(cache, 15) == [(20, b"b")]


def test_a_log_that_ended_earlier_begins_the_range_anew(cache):
    extend(cache, 10, 5, 0, values(*b"abcde".split()))
    extend(cache, 8, 1, 7, values(b"x"))
    assert (cache.start, cache.end) == (7, 9)
    assert records(cache, 8) == [(8, b"x")]


def test_what_is_not_to_be_kept_ends_the_range(cache):
    extend(cache, 10, 1, 0, values(b"a"))
    extend(cache, 20, 3, 11, None)
    assert cache.held_bytes == 0
    assert all(records(cache, offset) is None for offset in (0, 10, 11, 20, 22, 23))
    extend(cache, 30, 1, 23, values(b"b"))
    assert records(cache, 22) is None
    assert records(cache, 23) == [(30, b"b")]


def test_limits_hold_at_whole_batches(cache):
    for index in range(5):
        extend(cache, index, 1, index, sized(3000))
    assert [len(b"".join(cache.read(1, limit, None))) for limit in (1, 5999, 6000, 8999, PLENTY)] == [
        3000,
        3000,
        6000,
        6000,
        12_000,
    ]
    assert len(cache.read(0, PLENTY, None)) == 5, "large batches are not copied"


def test_the_first_batch_needs_room(cache):
    extend(cache, 0, 1, 0, sized(3000))
    assert cache.read(0, 10, 2999) == []
    assert len(cache.read(0, 10, 3000)) == 1
    assert len(cache.read(0, 10, None)) == 1


def test_small_batches_are_joined(cache):
    for index in range(50):
        extend(cache, index, 1, index, values(b"%d" % index))
    assert len(cache.read(3, PLENTY, None)) == 1
    assert records(cache, 3) == [(index, b"%d" % index) for index in range(3, 50)]


def test_large_batches_are_given_as_they_are_held(cache):
    extend(cache, 0, 1, 0, sized(100_000))
    extend(cache, 1, 1, 1, sized(100_000))
    first, second = cache.read(0, PLENTY, None)
    assert cache.read(0, PLENTY, None)[0] is first
    assert cache.read(1, PLENTY, None)[0] is second


def test_a_partitions_oldest_batches_go_first():
    cost = 1000 + BATCH_OVERHEAD_BYTES
    cache = TailCache(TailBudget(4 * cost))
    for index in range(1000):
        extend(cache, 10 * index + 5, 1, 0 if index == 0 else 10 * index - 4, sized(1000))
        assert cache.held_bytes == min(index + 1, 4) * cost
    assert cache.start == 9956
    assert [offset for offset, _ in records(cache, cache.start)] == [9965, 9975, 9985, 9995]
    assert len(cache._batches) <= 3 * 64, "places of batches that are gone are given back"


def test_a_batch_that_is_too_large_is_not_kept():
    budget = TailBudget(2000)
    cache = TailCache(budget)
    extend(cache, 0, 1, 0, sized(500))
    extend(cache, 1, 1, 1, sized(2000))
    assert budget.held_bytes == 0
    assert records(cache, 1) is None
    extend(cache, 2, 1, 2, sized(500))
    assert [offset for offset, _ in records(cache, 2)] == [2]


def test_nothing_is_kept_without_memory():
    budget = TailBudget(0)
    cache = TailCache(budget)
    extend(cache, 0, 1, 0, values(b"a"))
    assert budget.held_bytes == 0
    assert records(cache, 0) is None


def test_what_was_appended_first_gives_way():
    cost = 1000 + BATCH_OVERHEAD_BYTES
    budget = TailBudget(6 * cost)
    first, second, third = caches = [TailCache(budget) for _ in range(3)]
    for index in range(2):
        for cache in caches:
            extend(cache, index, 1, index, sized(1000))
    first.read(0, PLENTY, None)
    extend(third, 2, 1, 2, sized(1000))
    assert [cache.held_bytes // cost for cache in caches] == [1, 2, 3]
    assert (first.start, first.read(0, PLENTY, None)) == (1, None)
    extend(first, 2, 1, 2, sized(1000))
    assert [cache.held_bytes // cost for cache in caches] == [2, 1, 3]
    for index in range(3, 6):
        extend(third, index, 1, index, sized(1000))
    assert [cache.held_bytes // cost for cache in caches] == [1, 0, 5]
    assert second.read(1, PLENTY, None) is None
    assert [offset for offset, _ in records(first, 2)] == [2]
    assert budget.held_bytes == 6 * cost
    budget.clear()
    assert budget.held_bytes == sum(cache.held_bytes for cache in caches) == 0


def test_caches_that_were_emptied_are_forgotten():
    budget = TailBudget()
    kept = TailCache(budget)
    extend(kept, 0, 1, 0, sized(1000))
    for _ in range(1000):
        emptied = TailCache(budget)
        extend(emptied, 0, 1, 0, sized(1000))
        emptied.clear()
    assert len(budget._oldest) < 100, "places of caches that are empty are given back"
    budget.limit_bytes = 0
    budget.make_room()
    assert kept.held_bytes == budget.held_bytes == 0


def test_what_is_before_the_log_start_goes(cache):
    budget = cache._budget
    for index in range(4):
        extend(cache, 10 * index, 2, max(0, 10 * index - 8), values(b"a", b"b"))
    cache.cut(11)
    assert cache.start == 11
    assert records(cache, 10) is None
    assert [offset for offset, _ in records(cache, 11)] == [10, 11, 20, 21, 30, 31]
    cache.cut(5)
    assert cache.start == 11
    cache.cut(12)
    assert [offset for offset, _ in records(cache, 12)] == [20, 21, 30, 31]
    cache.cut(900)
    assert (cache.start, cache.end, budget.held_bytes) == (32, 32, 0)
    extend(cache, 40, 1, 32, values(b"c"))
    assert records(cache, 32) == [(40, b"c")]


def test_readers_without_zstd_are_not_given_it(cache):
    extend(cache, 0, 1, 0, values(b"a", attributes=LZ4))
    extend(cache, 1, 1, 1, values(b"a", attributes=ZSTD))
    extend(cache, 2, 1, 2, values(b"a"))
    assert cache.read(1, PLENTY, None, zstd=True)
    assert [bool(cache.read(offset, PLENTY, None, zstd=False)) for offset in (0, 1, 2)] == [
        False,
        False,
        True,
    ]


def test_only_batches_that_say_what_is_stored():
    now = now_ms()

    def kept(data: bytes) -> bool:
        header = kernel.parse_batch(data, 0)
        plain = data[61:] if header.codec else None
        return as_stored(header, kernel.encode_append(data, 0, header, plain, True))

    assert kept(values(b"a", b"b"))
    assert kept(values(b"a", timestamp_ms=-1))
    assert kept(values(b"a", attributes=ZSTD))
    assert kept(values(b"a", producer=(5, 0, 3)))
    assert not kept(values(b"a", attributes=8)), "the broker's own timestamps"
    assert not kept(values(b"a", attributes=64)), "a delete horizon"
    wrong_maximum = bytearray(values(b"a", timestamp_ms=now))
    wrong_maximum[35:43] = (now + 5).to_bytes(8, "big")
    wrong_maximum[17:21] = kernel.crc32c(bytes(wrong_maximum[21:])).to_bytes(4, "big")
    assert not kept(bytes(wrong_maximum))


def test_hits_and_misses_are_counted() -> None:
    budget = TailBudget()
    cache = TailCache(budget)
    cache.clear(0)
    for offset in range(3):
        cache.extend(offset, 1, offset, b"x" * 100)
    assert cache.read(0, 250, None) == [b"x" * 200]
    assert cache.read(0, 250, 50) is not None
    assert cache.read(2, 10, 50) == []
    assert cache.read(7, 10, None) is None
    assert (budget.hits, budget.hit_bytes, budget.misses) == (2, 400, 1)

"""Tail caches of a few partitions under one budget, against plain lists of the logs' records."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from korvet.log.tail_cache import BATCH_OVERHEAD_BYTES, TailBudget, TailCache
from korvet.records import kernel
from tests.api.batches import batch, read

Entry = tuple[int, bytes | None]

logs = st.integers(0, 2)


class Log:
    """The contents of one stream, and the part that the broker caches."""

    def __init__(self, budget: TailBudget) -> None:
        self.cache = TailCache(budget)
        self.entries: list[Entry] = []
        self.start = 0
        self.end = 0
        self.written = 0

    def add(self, count: int, gap: int) -> tuple[int, list[bytes]]:
        """Add entries at the end. Returns their first offset and their values."""
        base = self.end + gap
        values = [b"%d" % (self.written + index) for index in range(count)]
        self.entries += [(base + index, value) for index, value in enumerate(values)]
        self.written += count
        self.end = base + count
        return base, values

    def between(self, first: int, behind: int) -> list[Entry]:
        return [entry for entry in self.entries if first <= entry[0] < behind]


class TailCacheMachine(RuleBasedStateMachine):
    """A cache returns exactly the records of the log: nothing more, nothing left out."""

    @initialize(total=st.integers(0, 3000))
    def begin(self, total: int) -> None:
        self.budget = TailBudget(total)
        self.logs = [Log(self.budget) for _ in range(3)]

    @rule(log=logs, count=st.integers(1, 4), gap=st.integers(0, 5), pad=st.sampled_from([0, 0, 60, 900]))
    def append(self, log: int, count: int, gap: int, pad: int) -> None:
        chosen = self.logs[log]
        previous_end = chosen.end
        base, values = chosen.add(count, gap)
        sent = batch([(b"p" * pad, value) for value in values])
        chosen.cache.extend(base, count, previous_end, kernel.place_batch(sent, base, 3))

    @rule(log=logs, count=st.integers(1, 4), gap=st.integers(0, 5))
    def append_what_is_not_kept(self, log: int, count: int, gap: int) -> None:
        chosen = self.logs[log]
        previous_end = chosen.end
        base, _ = chosen.add(count, gap)
        chosen.cache.extend(base, count, previous_end, None)

    @rule(log=logs, count=st.integers(1, 3), gap=st.integers(0, 3))
    def native_add(self, log: int, count: int, gap: int) -> None:
        self.logs[log].add(count, gap)

    @rule(log=logs, took_effect=st.booleans(), count=st.integers(1, 3))
    def lose_the_link(self, log: int, took_effect: bool, count: int) -> None:
        if took_effect:
            self.logs[log].add(count, 1)
        self.logs[log].cache.clear()

    @rule(log=logs, share=st.floats(0, 1))
    def trim(self, log: int, share: float) -> None:
        chosen = self.logs[log]
        start = max(chosen.start, int(chosen.end * share))
        chosen.start = start
        chosen.entries = chosen.between(start, chosen.end)
        chosen.cache.cut(start)

    @rule(log=logs)
    def delete_all(self, log: int) -> None:
        """The stream and its caches are deleted: offsets begin again."""
        chosen = self.logs[log]
        chosen.entries = []
        chosen.start = chosen.end = 0
        chosen.cache.clear()

    @rule(
        log=logs, share=st.floats(0, 1), max_bytes=st.integers(1, 2000), room=st.none() | st.integers(0, 900)
    )
    def look(self, log: int, share: float, max_bytes: int, room: int | None) -> None:
        chosen = self.logs[log]
        cache = chosen.cache
        offset = int((chosen.end + 3) * share)
        found = cache.read(offset, max_bytes, room)
        assert (found is None) == (not cache.start <= offset < cache.end)
        if not found:
            assert found is None or room is not None
            return
        data = b"".join(found)
        given = [(at, value) for at, _, value in read(data)]
        assert given[-1][0] >= offset
        assert [entry for entry in given if entry[0] >= offset] == chosen.between(offset, given[-1][0] + 1)
        assert len(data) <= max_bytes or (len(found) == 1 and (room is None or len(data) <= room))

    @invariant()
    def all_that_is_known_is_right(self) -> None:
        for log in getattr(self, "logs", ()):
            cache = log.cache
            assert cache.start <= cache.end <= log.end
            if cache.start == cache.end:
                continue
            assert cache.start >= log.start
            found = cache.read(cache.start, 1 << 40, None)
            given = [(at, value) for at, _, value in read(b"".join(found or ()))]
            assert [entry for entry in given if entry[0] >= cache.start] == log.between(
                cache.start, cache.end
            )

    @invariant()
    def memory_is_bounded(self) -> None:
        if not hasattr(self, "logs"):
            return
        caches = [log.cache for log in self.logs]
        assert sum(cache.held_bytes for cache in caches) == self.budget.held_bytes <= self.budget.limit_bytes
        for cache in caches:
            batches = [each for each in cache._batches if each]
            assert cache.held_bytes == sum(len(each) + BATCH_OVERHEAD_BYTES for each in batches)


TailCacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestTailCache = TailCacheMachine.TestCase

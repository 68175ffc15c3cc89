"""The index of a log's transactions: it never claims more than is true, in any order of replies, and never
holds more aborted transactions than its limit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from korvet.log import transactions
from korvet.log.transactions import Aborted, TransactionIndex, overlapping

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = transactions._REMEMBERED
PRODUCERS = 3


class Log:
    """A log as Redis holds it: Redis executes one step after the other, and replies on one of two links."""

    def __init__(self) -> None:
        self.index = TransactionIndex()
        self.end = 0
        self.open: dict[int, int] = {}
        self.aborted: list[Aborted] = []
        self.replies: dict[str, deque[Callable[[], object]]] = {"write": deque(), "read": deque()}

    @property
    def last_stable_offset(self) -> int:
        return min(self.open.values(), default=self.end)

    def append(self, producer: int, gap: int, records: int) -> None:
        """Append a batch; producer 0 is in no transaction."""
        previous_end, base = self.end, self.end + gap
        self.end = base + records
        if producer:
            self.open.setdefault(producer, previous_end)
        self._replied("write", previous_end, None)

    def mark(self, producer: int, gap: int, *, committed: bool) -> None:
        previous_end, offset = self.end, self.end + gap
        if producer not in self.open:
            return
        first = self.open.pop(producer)
        self.end = offset + 1
        aborted = None if committed else Aborted(offset, first, producer, self.last_stable_offset)
        self.aborted += [] if aborted is None else [aborted]
        self._replied("write", previous_end, (offset, aborted))

    def _replied(self, link: str, previous_end: int, marker: tuple[int, Aborted | None] | None) -> None:
        end, last_stable_offset = self.end, self.last_stable_offset

        def arrive() -> None:
            if marker is None:
                self.index.appended(previous_end, end)
            else:
                self.index.ended(previous_end, *marker)
            self.index.observe_bounds(last_stable_offset, end)

        self.replies[link].append(arrive)

    def append_natively(self, gap: int) -> None:
        self.end += gap + 1

    def ask_bounds(self) -> None:
        end, last_stable_offset = self.end, self.last_stable_offset
        self.replies["read"].append(lambda: self.index.observe_bounds(last_stable_offset, end))

    def ask_markers(self, first: int) -> None:
        """Ask Redis for markers, as a reader from this offset on does that knows the last stable offset."""
        told = [each for each in self.aborted if each.last_offset >= first]
        proven_end, generation = self.index.proven_end, self.index.generation
        if first < self.index.last_stable_offset:

            def arrive() -> None:
                if self.index.generation == generation:
                    self.index.merge_aborted(first, told, proven_end)

            self.replies["read"].append(arrive)

    def lose_replies(self) -> None:
        """Break the write link: the replies to its commands are lost."""
        self.replies["write"].clear()

    def arrive(self, link: str) -> None:
        if self.replies[link]:
            self.replies[link].popleft()()


STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.integers(0, PRODUCERS),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    st.tuples(st.just("commit"), st.integers(1, PRODUCERS), st.integers(0, 3)),
    st.tuples(st.just("abort"), st.integers(1, PRODUCERS), st.integers(0, 3)),
    st.tuples(st.just("native"), st.integers(0, 3)),
    st.tuples(st.just("bounds")),
    st.tuples(st.just("markers"), st.integers(0, 60)),
    st.tuples(st.just("arrive"), st.sampled_from(["write", "read"])),
    st.tuples(st.sampled_from(["lose", "forget"])),
)


def take(log: Log, step: tuple[object, ...]) -> None:
    actions: dict[object, Callable[..., object]] = {
        "append": log.append,
        "commit": lambda *args: log.mark(*args, committed=True),
        "abort": lambda *args: log.mark(*args, committed=False),
        "native": log.append_natively,
        "bounds": log.ask_bounds,
        "markers": log.ask_markers,
        "arrive": log.arrive,
        "lose": log.lose_replies,
        "forget": log.index.forget,
    }
    actions[step[0]](*step[1:])


@given(st.lists(STEPS, max_size=60))
def test_nothing_is_known_that_is_not_true(steps: list[tuple[object, ...]]) -> None:
    log = Log()
    index = log.index
    for step in steps:
        take(log, step)
        assert index.last_stable_offset <= log.last_stable_offset
        for first in range(max(index.last_stable_offset, 0)):
            known = index.aborted_from(first)
            if known is not None:
                there = [each for each in log.aborted if each.last_offset >= first]
                for end in (first + 1, index.last_stable_offset):
                    assert overlapping(known, end) == overlapping(there, end)
    log.ask_bounds()
    for link in ("write", "read"):
        while log.replies[link]:
            log.arrive(link)
    assert (index.last_stable_offset, index.proven_end) == (log.last_stable_offset, log.end)
    if log.last_stable_offset > 0:
        log.ask_markers(0)
        log.arrive("read")
        assert index.aborted_from(0) is not None


def test_markers_are_known_from_our_own_appends_alone() -> None:
    log = Log()
    for number in range(20):
        log.append(1 + number % PRODUCERS, 2, 3)
        log.append(0, 1, 1)
        log.mark(1 + number % PRODUCERS, 0, committed=number % 2 == 0)
    while log.replies["write"]:
        log.arrive("write")
    assert log.index.aborted_from(0) == log.aborted


def test_a_read_that_overtakes_the_reply_to_an_append_proves_no_stable_end() -> None:
    log = Log()
    log.append(0, 0, 1)
    log.arrive("write")
    log.append(1, 0, 5)
    assert log.index.last_stable_offset == 1
    log.ask_bounds()
    log.arrive("read")
    assert (log.index.last_stable_offset, log.index.proven_end) == (1, 6)
    log.mark(1, 0, committed=False)
    log.ask_bounds()
    log.arrive("read")
    # All transactions are decided, but their outcomes are unknown here.
    assert (log.index.last_stable_offset, log.index.aborted_from(1)) == (7, None)
    log.arrive("write")
    log.arrive("write")
    assert log.index.aborted_from(1) == log.aborted


def aborted_at(offset: int) -> Aborted:
    """An aborted transaction of one record directly before its marker."""
    return Aborted(offset, offset - 1, 7, offset + 1)


def test_the_newest_are_remembered_if_there_are_too_many() -> None:
    kept = [aborted_at(2 * number) for number in range(1, MOST + 101)]
    index = TransactionIndex()
    index.observe_bounds(10_000, 10_000)
    index.merge_aborted(0, kept, 10_000)
    assert index.abort_markers_from == kept[99].last_offset + 1
    assert index.aborted_from(index.abort_markers_from) == kept[100:]
    index.ended(10_000, 10_001, Aborted(10_001, 10_000, 7, 10_002))
    assert index.abort_markers_from == kept[100].last_offset + 1

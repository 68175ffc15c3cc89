"""The bounds of a log: in order whatever arrives, and never beyond what replies and replicas prove."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from korvet.log.ends import UNKNOWN_END, KnownEnds
from korvet.log.transactions import TransactionIndex
from korvet.log.values import Ends


class Log:
    """A log in Redis, replies about it on their way, and what its leader knows of it."""

    def __init__(self, *, waits: bool) -> None:
        self.start = self.stable = self.end = 0
        self.known = KnownEnds(TransactionIndex())
        self.known.await_copies(waits=waits)
        self.waits = waits
        self.replies: list[tuple[int, int, int]] = []
        self.copied = (0, 0)
        """Log end and last stable offset of which replicas have all."""
        self.asked: list[tuple[int, int]] = []

    def append(self, records: int, place: int) -> None:
        """Records of an open transaction, or without a transaction."""
        self.end += records
        if place % 2:
            self.stable = self.end

    def delete(self, records: int, _: int) -> None:
        self.start = min(self.start + records, self.end)
        self.stable = max(self.stable, self.start)

    def reply(self, *_: int) -> None:
        self.replies.append((self.start, self.end, self.stable))

    def arrive(self, _: int, place: int) -> None:
        if self.replies:
            self.known.take(*self.replies.pop(place % len(self.replies)))

    def read(self, *_: int) -> None:
        """A read shows the last record before a reply states the log end."""
        self.known.grow(self.end)

    def ask(self, *_: int) -> None:
        if self.known.loaded:
            self.asked.append((self.known.ends.log_end, self.known.stable))

    def answer(self, *_: int) -> None:
        if self.waits and self.asked and self.known.loaded:
            end, stable = self.asked.pop(0)
            self.copied = max(self.copied[0], end), max(self.copied[1], stable)
            self.known.release(end, stable)

    def move(self, *_: int) -> None:
        """A replica takes over, with all that was released, or more."""
        self.replies.clear()
        self.asked.clear()
        self.known.forget()
        if self.waits:
            end = self.end = max(self.copied[0], self.start)
            self.stable = max(min(self.stable, end), self.start)

    def wait_for_copies(self, *_: int) -> None:
        if not self.waits:
            self.waits = True
            self.copied = self.known.ends.high_watermark, self.known.ends.last_stable_offset
            self.known.await_copies(waits=True)


STEPS = [
    Log.append,
    Log.delete,
    Log.reply,
    Log.arrive,
    Log.read,
    Log.ask,
    Log.answer,
    Log.move,
    Log.wait_for_copies,
]


@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 9), st.integers(0, 9)), max_size=60),
)
def test_nothing_is_known_that_was_not_proven(waits: bool, steps: list[tuple[object, int, int]]) -> None:
    log = Log(waits=waits)
    for step, records, place in steps:
        before, was_loaded = log.known.ends, log.known.loaded
        step(log, records, place)  # type: ignore[operator]
        ends = log.known.ends
        if not log.known.loaded:
            continue
        assert ends.log_end <= log.end
        assert ends.log_start <= log.start
        assert ends.last_stable_offset <= log.stable
        if log.waits:
            assert ends.high_watermark <= max(log.copied[0], ends.log_start)
        else:
            assert ends.high_watermark == ends.log_end
        if was_loaded and step is not Log.wait_for_copies:
            pairs = zip(astuple(ends), astuple(before), strict=True)
            assert all(after >= earlier for after, earlier in pairs)


@pytest.mark.parametrize("reply", [(5, 4, -1), (-1, 4, -1), (0, 4, 5)])
def test_after_a_reply_that_contradicts_itself_both_ends_are_read_again(reply: tuple[int, int, int]) -> None:
    known = KnownEnds(TransactionIndex())
    known.take(0, 7, 7)
    with pytest.raises(AssertionError):
        known.take(*reply)
    assert not known.loaded
    known.take(2, 3, 3)
    assert known.ends == Ends(2, 2, 3, 3, 3)


def test_nothing_is_released_that_was_not_appended() -> None:
    known = KnownEnds(TransactionIndex())
    known.await_copies(waits=True)
    with pytest.raises(AssertionError, match="unknown log"):
        known.release(0, 0)
    known.take(0, 7, 7)
    with pytest.raises(AssertionError, match="8"):
        known.release(8, 8)
    assert (known.released, known.ends) == (UNKNOWN_END, Ends(0, 0, 0, 0, 7))

"""A produced batch: each event in each step, and random series of events."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from korvet.api.producing.batch import Batch, Step
from korvet.api.producing.response import RecordError, Refused
from korvet.api.producing.unpacking import Unpacked
from korvet.records.batch import BatchError
from korvet.redis.errors import NotEnoughReplicas
from korvet.transactions.messages import AddReply

if TYPE_CHECKING:
    from collections.abc import Callable

    Event = Callable[[Batch], None]

VERSION: Final = 9
GZIP: Final = 1
PLAIN: Final = b"plain"
# Kinds of batches.
COMPRESSED, TRANSACTIONAL = 1, 2


class Memory:
    """Counts what is given back."""

    def __init__(self) -> None:
        self.given_back: list[int] = []

    def give_back(self, size_bytes: int) -> None:
        self.given_back.append(size_bytes)


def located(kind: int, *, codec: int = GZIP) -> Batch:
    header: Any = SimpleNamespace(codec=codec if kind & COMPRESSED else 0)
    place: Any = SimpleNamespace()
    joins: Any = SimpleNamespace() if kind & TRANSACTIONAL else None
    return Batch(3, data=b"batch", header=header, place=place, topic="t", joins=joins)


def unpack(batch: Batch, memory: Any = None) -> None:
    batch.unpack(Unpacked(PLAIN, memory or Memory(), len(PLAIN)))


def join(batch: Batch) -> None:
    batch.join(VERSION, AddReply(ErrorCode.none))


def join_absent(batch: Batch) -> None:
    batch.join(VERSION, AddReply(ErrorCode.none, frozenset({("t", 3)})))


def append(batch: Batch) -> None:
    batch.append(7, 5, 11, waits=False)


def append_and_wait(batch: Batch) -> None:
    batch.append(7, 5, 11, waits=True)


def refuse(batch: Batch) -> None:
    batch.refuse(NotEnoughReplicas("too few"))


STEPS: Final[dict[str, tuple[int, tuple[Event, ...]]]] = {
    "UNPACKING": (COMPRESSED, ()),
    "UNPACKING, transactional": (COMPRESSED | TRANSACTIONAL, ()),
    "JOINING": (TRANSACTIONAL, ()),
    "JOINING, unpacked": (COMPRESSED | TRANSACTIONAL, (unpack,)),
    "APPENDING": (0, ()),
    "APPENDING, unpacked": (COMPRESSED, (unpack,)),
    "APPENDING, joined": (TRANSACTIONAL, (join,)),
    "REPLICATING": (0, (append_and_wait,)),
    "ENDED": (0, (append,)),
    "ENDED, refused": (0, (refuse,)),
}
"""The steps: the kind of the batch and the events that lead to them."""
EVENTS: Final[dict[str, Event]] = {
    "unpack": unpack,
    "join": join,
    "join, absent": join_absent,
    "append": append,
    "append, waits": append_and_wait,
    "release": Batch.release,
    "refuse": refuse,
}
NEVER: Final = "cannot happen"
REFUSED: Final = "raises Refused"
EXPECTED: Final[dict[str, tuple[str, ...]]] = {
    "unpack": ("APPENDING", "JOINING", *(NEVER,) * 8),
    "join": (NEVER, NEVER, "APPENDING", "APPENDING", *(NEVER,) * 6),
    "join, absent": (NEVER, NEVER, REFUSED, REFUSED, *(NEVER,) * 6),
    "append": (*(NEVER,) * 4, "ENDED", "ENDED", "ENDED", *(NEVER,) * 3),
    "append, waits": (*(NEVER,) * 4, "REPLICATING", "REPLICATING", "REPLICATING", *(NEVER,) * 3),
    "release": (*(NEVER,) * 7, "ENDED", NEVER, NEVER),
    "refuse": (*("ENDED",) * 8, NEVER, NEVER),
}
"""By event: the step after it, for each of STEPS."""


def happened(batch: Batch, event: Event) -> str:
    """What an event does."""
    step = batch.step
    try:
        event(batch)
    except AssertionError:
        assert batch.step is step
        return NEVER
    except Refused:
        assert batch.step is step
        return REFUSED
    return batch.step.name


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("step", STEPS)
def test_each_event_in_each_step(step: str, event: str) -> None:
    kind, events = STEPS[step]
    batch = located(kind)
    for each in events:
        each(batch)
    assert batch.step.name == step.partition(",")[0]
    assert happened(batch, EVENTS[event]) == EXPECTED[event][list(STEPS).index(step)]


@given(
    kind=st.integers(0, 3),
    names=st.lists(st.sampled_from(sorted(EVENTS)), max_size=12),
)
def test_random_events(kind: int, names: list[str]) -> None:
    """Memory is given back once, when the append has ended, and what has ended stays as it is."""
    memory = Memory()
    batch = located(kind)
    seen = [batch.step]
    for name in names:
        event = EVENTS[name]
        before = (batch.error, batch.base_offset, batch.message)
        if event is unpack and batch.step is Step.UNPACKING:
            event = partial(unpack, memory=memory)
        happened(batch, event)
        if seen[-1] is Step.ENDED:
            assert (batch.error, batch.base_offset, batch.message) == before
        if batch.step is not seen[-1]:
            seen.append(batch.step)
        was_unpacked = bool(kind & COMPRESSED) and len(seen) > 1 and seen[1] is not Step.ENDED
        holds = batch.step in (Step.UNPACKING, Step.JOINING, Step.APPENDING)
        assert memory.given_back == ([len(PLAIN)] if was_unpacked and not holds else [])
        assert (batch.plain is not None) == (was_unpacked and holds)
    values = [step.value for step in seen]
    assert values == sorted(set(values)), "steps follow each other in one direction"
    assert (Step.JOINING in seen) <= bool(kind & TRANSACTIONAL)


def test_the_answer_of_an_appended_batch() -> None:
    batch = located(0)
    append_and_wait(batch)
    assert (batch.index, batch.base_offset, batch.log_start, batch.append_ms) == (3, 7, 5, 11)
    assert batch.data == b"", "many requests may wait for replicas"
    batch.release()
    assert batch.error is ErrorCode.none
    assert batch.message is None


@pytest.mark.parametrize(
    ("refusal", "error", "message"),
    [
        (
            Refused(ErrorCode.invalid_timestamp, "late", [RecordError(2, "m")]),
            ErrorCode.invalid_timestamp,
            "late",
        ),
        (BatchError("corrupt", "bad CRC"), ErrorCode.corrupt_message, "bad CRC"),
        (Refused(ErrorCode.topic_authorization_failed, ""), ErrorCode.topic_authorization_failed, None),
    ],
)
def test_the_answer_of_a_refused_batch(refusal: Any, error: ErrorCode, message: str | None) -> None:
    batch = located(0)
    batch.refuse(refusal)
    assert batch.error is error
    assert batch.message == message
    assert list(batch.record_errors) == list(getattr(refusal, "records", ()))

"""Long lists in slices: whoever asks for much leaves the event loop to the others every few milliseconds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

# How long one request may keep the event loop at a time: several times what most requests take in all.
_SLICE_S: Final = 0.005
# Answers that are waited for at once: enough to keep Redis busy, and few tasks.
_AT_ONCE: Final = 200


async def sliced(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """The items one by one, with a turn of the event loop for others after every slice of time."""
    until = time.perf_counter() + _SLICE_S
    for item in items:
        yield item
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + _SLICE_S


async def gathered(answers: Iterable[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
    """What each of the coroutines returns, in their order; some of them are at work at once."""
    found: list[_Answer] = []
    pending = iter(answers)
    while some := list(islice(pending, _AT_ONCE)):
        found += await asyncio.gather(*some)
    return found


async def answer_each(
    topics: Any, answer: Callable[[str, Any, bool], Coroutine[Any, Any, _Answer]]
) -> list[tuple[str, list[_Answer]]]:
    """By topic, in the request's order, what answer(topic, partition asked for, repeated) gives.

    Partitions of a topic are at work at once. `repeated`: the request names the partition more than once.
    """
    times = Counter((topic.name, each.partition_index) for topic in topics for each in topic.partitions)
    return [
        (
            topic.name,
            await gathered(
                answer(topic.name, each, times[topic.name, each.partition_index] > 1)
                for each in topic.partitions
            ),
        )
        for topic in topics
    ]

"""Long lists in slices: a request with much work leaves the event loop to others every few milliseconds."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

# Limits the time that one request holds the event loop at once: several times the total of most requests.
_SLICE_S: Final = 0.005
# Limits the answers awaited at once: enough to keep Redis busy, with few tasks.
_AT_ONCE: Final = 200


async def sliced(
    items: Iterable[_Item], slice_s: float = _SLICE_S, pause_s: float = 0.0
) -> AsyncIterator[_Item]:
    """Yield the items one by one. After every slice of time, others have the event loop for one turn, or for
    the pause.
    """
    until = time.perf_counter() + slice_s
    for item in items:
        yield item
        if time.perf_counter() >= until:
            await asyncio.sleep(pause_s)
            until = time.perf_counter() + slice_s


async def gathered(answers: Iterable[Coroutine[Any, Any, _Answer]], at_once: int = _AT_ONCE) -> list[_Answer]:
    """The results of the coroutines in their order; some of them run at once."""
    found: list[_Answer] = []
    pending = iter(answers)
    while some := list(islice(pending, at_once)):
        found += await asyncio.gather(*some)
    return found


async def answer_each(
    topics: Any, answer: Callable[[str, Any], Coroutine[Any, Any, _Answer]]
) -> list[tuple[str, list[_Answer]]]:
    """The results of answer(topic, partition asked for) by topic, in the request's order.

    Partitions of a topic run at once. A partition that is repeated is answered once: what the request says
    last of it counts, as in Kafka.
    """
    asked: dict[str, dict[int, Any]] = {}
    for topic in topics:
        asked.setdefault(topic.name, {}).update((each.partition_index, each) for each in topic.partitions)
    return [
        (name, await gathered(answer(name, each) for each in partitions.values()))
        for name, partitions in asked.items()
    ]

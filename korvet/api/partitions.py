"""Requests about partitions of topics, which are answered one by one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_Answer = TypeVar("_Answer")


async def answer_each(
    topics: Any, answer: Callable[[str, Any, bool], Coroutine[Any, Any, _Answer]]
) -> list[tuple[str, list[_Answer]]]:
    """By topic, in the request's order, what answer(topic, partition asked for, repeated) gives.

    All partitions of a topic are at work at once. `repeated`: the request names the partition more than once.
    """
    times = Counter((topic.name, each.partition_index) for topic in topics for each in topic.partitions)
    return [
        (
            topic.name,
            await asyncio.gather(
                *(
                    answer(topic.name, each, times[topic.name, each.partition_index] > 1)
                    for each in topic.partitions
                )
            ),
        )
        for topic in topics
    ]

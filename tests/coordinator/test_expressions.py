"""The topics that an expression matches: found in the background, kept until the topics change."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from korvet.coordinator import expressions
from korvet.coordinator.expressions import TopicExpressions
from korvet.groups.consumer.automaton import InvalidRegex
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 20


def of(*names: str) -> tuple[TopicExpressions, Any]:
    """The expressions of a catalogue, and the catalogue."""
    catalogue: Any = SimpleNamespace(applied_version=1, local_change=1, topics=dict.fromkeys(names))
    return TopicExpressions(catalogue, lambda work: asyncio.ensure_future(work())), catalogue


def change(catalogue: Any, version: int, *names: str) -> None:
    """Let the catalogue have these topics."""
    catalogue.local_change += 1
    catalogue.applied_version, catalogue.topics = version, dict.fromkeys(names)


def random_names(count: int) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=60)) for _ in range(count)]


async def found(topics: TopicExpressions, pattern: str, *names: str) -> None:
    async def is_found() -> bool:
        known = topics.matching(pattern)
        return known is not None and sorted(known.names) == sorted(names)

    await until_async(is_found, WAIT_S, f"the topics of {pattern}")


async def test_topics_are_looked_for_meanwhile() -> None:
    topics, catalogue = of("orders", "payments")
    assert topics.matching("o.*") is None
    await found(topics, "o.*", "orders")
    change(catalogue, 2, "orders", "offers", "payments")
    known = topics.matching("o.*")
    # The last result counts until there is a newer one.
    assert known is not None
    assert (known.names, known.version) == (("orders",), 1)
    await found(topics, "o.*", "offers", "orders")


async def test_a_version_may_come_again_with_other_topics() -> None:
    """A failover may lose changes of the topics."""
    topics, catalogue = of("orders", "payments")
    await topics.find("o.*")
    change(catalogue, 0, "payments")
    change(catalogue, 1, "offers", "payments")
    await topics.find("o.*")
    known = topics.matching("o.*")
    assert known is not None
    assert known.names == ("offers",)


async def test_a_search_has_what_it_found_known_at_once() -> None:
    topics, _ = of("orders", "payments")
    await topics.find("p.*")
    known = topics.matching("p.*")
    assert known is not None
    assert known.names == ("payments",)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Switches the garbage collector off: its pauses grow with all objects that other tests have left."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
async def test_others_have_their_turn_meanwhile() -> None:
    topics, _ = of(*random_names(2_000))
    searches = [asyncio.ensure_future(topics.find(f"(.?){{{count}}}")) for count in range(900, 905)]
    # CPU time: the machine may have other work.
    longest_s, clock = 0.0, time.thread_time
    while not all(search.done() for search in searches):
        began = clock()
        await asyncio.sleep(0)
        longest_s = max(longest_s, clock() - began)
    assert longest_s < 0.5
    for search in searches:
        assert isinstance(search.exception(), InvalidRegex)


async def test_what_takes_too_long_is_not_tried_again_with_the_same_topics() -> None:
    topics, catalogue = of(*random_names(2_000))
    with pytest.raises(InvalidRegex, match="too long"):
        await topics.find("(.?){1000}")
    began = asyncio.get_running_loop().time()
    for _ in range(1_000):
        with pytest.raises(InvalidRegex, match="too long"):
            await topics.find("(.?){1000}")
    assert asyncio.get_running_loop().time() - began < 5
    assert topics.matching("(.?){1000}") is None
    change(catalogue, 2, "orders")
    await topics.find("(.?){1000}")
    await found(topics, "(.?){1000}", "orders")


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_MOST_KEPT", 10_000)
    topics, _ = of(*(f"t{number}" for number in range(1_000)))
    patterns = [f"t.*|{number}" for number in range(50)]
    for pattern in patterns:
        await topics.find(pattern)
    kept = [pattern for pattern in patterns if topics.matching(pattern) is not None]
    # The newest results; the others are being searched for again now.
    assert kept == patterns[-len(kept) :]
    assert 5 <= len(kept) <= 10
    await found(topics, patterns[0], *(f"t{number}" for number in range(1_000)))

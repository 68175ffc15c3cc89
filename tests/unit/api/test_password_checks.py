"""Passwords are checked by turns of addresses; what waits is bounded, and goes with its client."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from korvet.api.common import password_checks
from korvet.api.common.password_checks import MOST_WAITING_OF_ADDRESS, PasswordChecks, TooManyChecks

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 20


class Work:
    """Checks that end when they are let, in one thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(password_checks, "_MOST_THREADS", 1)
        self.gate = threading.Event()
        self.checked: list[str] = []
        self.checks = PasswordChecks()

    def begin(self, address: str, name: str) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(self.checks.run(address, partial(self._check, name)))

    def _check(self, name: str) -> bytes:
        assert self.gate.wait(DEADLINE_S)
        self.checked.append(name)
        return name.encode()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    made = Work(monkeypatch)
    yield made
    made.gate.set()
    made.checks.close()


async def test_addresses_take_turns(work: Work) -> None:
    guesses = [work.begin("/10.0.0.1", f"guess{number}") for number in range(100)]
    await asyncio.sleep(0)
    others = [work.begin("/10.0.0.2", "second"), work.begin("/10.0.0.3", "third")]
    await asyncio.sleep(0)
    work.gate.set()
    assert await asyncio.gather(*others) == [b"second", b"third"]
    assert {"second", "third"} <= set(work.checked[:4])
    assert await asyncio.gather(*guesses) == [f"guess{number}".encode() for number in range(100)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/10.0.0.1", "/::ffff:10.0.0.1", True),
        ("/2001:db8:1:2::1", "/2001:db8:1:2:ffff::2", True),
        ("/2001:db8:1:2::1", "/2001:db8:1:3::1", False),
        ("/fe80::1%eth0", "/fe80::2%eth0", True),
    ],
)
async def test_whose_turn_it_is(one: str, other: str, same: bool, work: Work) -> None:
    first = [work.begin(one, f"one{number}") for number in range(10)]
    await asyncio.sleep(0)
    last = work.begin(other, "other")
    await asyncio.sleep(0)
    work.gate.set()
    await asyncio.gather(*first, last)
    assert (work.checked.index("other") == 10) == same


async def test_an_address_with_too_many_is_refused_and_others_are_not(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_checks, "MOST_WAITING", MOST_WAITING_OF_ADDRESS)
    waiting = [work.begin("/10.0.0.1", "guess") for _ in range(1 + MOST_WAITING_OF_ADDRESS)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyChecks):
        await work.begin("/10.0.0.1", "too many")
    other = work.begin("/10.0.0.2", "other")
    await asyncio.sleep(0)
    with pytest.raises(TooManyChecks):
        await work.begin("/10.0.0.2", "too many of all")
    work.gate.set()
    assert await other == b"other"
    await asyncio.gather(*waiting)


async def test_a_client_that_has_gone_costs_no_check(work: Work) -> None:
    guesses = [work.begin("/10.0.0.1", f"guess{number}") for number in range(50)]
    await asyncio.sleep(0)
    for guess in guesses[:-1]:
        guess.cancel()
    await asyncio.sleep(0)
    work.gate.set()
    assert await guesses[-1] == b"guess49"
    assert work.checked == ["guess0", "guess49"], "the first one was at work already"


async def test_what_a_check_raises_is_raised(work: Work) -> None:
    def fail() -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await work.checks.run("/10.0.0.1", fail)
    work.gate.set()
    assert await work.begin("/10.0.0.1", "next") == b"next"


async def test_an_end_cancels_what_waits(work: Work) -> None:
    guesses = [work.begin("/10.0.0.1", f"guess{number}") for number in range(3)]
    await asyncio.sleep(0)
    work.checks.close()
    for guess in guesses[1:]:
        with pytest.raises(asyncio.CancelledError):
            await guess
    work.gate.set()
    assert await guesses[0] == b"guess0"

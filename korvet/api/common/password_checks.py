"""Checks of passwords, which take milliseconds of CPU each, in threads of their own.

The addresses that wait take turns, one check each: guesses over many connections delay only their address.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

# A second or two of checks. A client that is refused connects again later.
MOST_WAITING_OF_ADDRESS: Final = 500
MOST_WAITING: Final = 5_000
# Half of the CPUs stay for the event loop and Redis; four threads check a thousand passwords a second.
_MOST_THREADS: Final = 4
# The part of an IPv6 address that counts: a customer of a provider chooses all further bits.
_IPV6_NETWORK_BITS: Final = 64


class TooManyChecks(Exception):
    """Too many passwords wait to be checked, of this address or of all."""


class _Check(NamedTuple):
    work: Callable[[], bytes]
    outcome: asyncio.Future[bytes]


class PasswordChecks:
    """The checks that wait and those at work. To be used in one event loop."""

    def __init__(self) -> None:
        threads = min(max((os.cpu_count() or 1) // 2, 1), _MOST_THREADS)
        self._executor = ThreadPoolExecutor(threads, "passwords")
        self._free = threads
        # By address, in the order of their turns.
        self._waiting: dict[str, deque[_Check]] = {}
        self._count = 0

    async def run(self, address: str, work: Callable[[], bytes]) -> bytes:
        """The outcome of `work`, called in a thread when the address has its turn. Raises TooManyChecks."""
        network = _network_of(address)
        mine = len(self._waiting.get(network, ()))
        # Nobody keeps out an address that waits for nothing yet.
        if mine >= MOST_WAITING_OF_ADDRESS or (mine and self._count >= MOST_WAITING):
            raise TooManyChecks
        check = _Check(work, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(network, deque()).append(check)
        self._count += 1
        self._begin()
        return await check.outcome

    def close(self) -> None:
        """Begin no more checks, and cancel waiting ones."""
        for check in itertools.chain.from_iterable(self._waiting.values()):
            check.outcome.cancel()
        self._waiting.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._free and self._waiting:
            network = next(iter(self._waiting))
            waiting = self._waiting.pop(network)
            check = waiting.popleft()
            self._count -= 1
            if waiting:
                self._waiting[network] = waiting
            # A client that has gone needs no answer.
            if not check.outcome.cancelled():
                self._free -= 1
                at_work = asyncio.get_running_loop().run_in_executor(self._executor, check.work)
                at_work.add_done_callback(partial(self._end, check))

    def _end(self, check: _Check, done: asyncio.Future[bytes]) -> None:
        self._free += 1
        error = None if done.cancelled() else done.exception()
        if done.cancelled():
            check.outcome.cancel()
        elif check.outcome.cancelled():
            pass  # the client has disconnected
        elif error is not None:
            check.outcome.set_exception(error)
        else:
            check.outcome.set_result(done.result())
        self._begin()


def _network_of(address: str) -> str:
    """The addresses that one client can have: an IPv4 address, or a network of IPv6."""
    try:
        parsed = ip_address(address.removeprefix("/").partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{int(parsed) >> (128 - _IPV6_NETWORK_BITS):x}/{_IPV6_NETWORK_BITS}"

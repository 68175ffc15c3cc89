"""Faults on request: a Kafka client meets what it meets in production, when a test asks for it.

Speaks with the admin endpoints of the brokers (korvet/admin/faults.py). Faults end with the process of their
broker.
"""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypedDict
from urllib.parse import urlsplit

from korvet.testing.errors import KorvetBrokerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

_PATH: Final = "/faults"
# Longest time of a request: a broker that leads anew waits for Redis.
_TIMEOUT_S: Final = 30.0
_WAIT_S: Final = 30.0
_PAUSE_S: Final = 0.01


class Which(TypedDict, total=False):
    """The requests that meet a fault: the next ones of an API, as far as each given property is equal."""

    times: int | None
    """How many of them; 1 if nothing is given, None for all until `Faults.clear`."""
    topic: str
    partition: int
    group: str
    client_id: str


class Fault:
    """A fault that was asked for. With several brokers, each of them counts its own requests. After a restart
    of the broker, and after `Faults.clear`, its properties raise KorvetBrokerError.
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """`numbers`: by the URL of the broker's admin endpoint."""
        self._numbers = numbers

    @property
    def met(self) -> int:
        """How many requests have met it."""
        return sum(each["met"] for each in self._counts())

    @property
    def left(self) -> int | None:
        """How many requests will meet it; None for all."""
        left = [each["left"] for each in self._counts()]
        return None if None in left else sum(left)

    def wait(self, met: int = 1, timeout_s: float = _WAIT_S) -> None:
        """Wait until so many requests have met it. In a coroutine: `await asyncio.to_thread(fault.wait)`.

        Raises KorvetBrokerError.
        """
        deadline = time.monotonic() + timeout_s
        while (now := self.met) < met:
            if time.monotonic() > deadline:
                raise KorvetBrokerError(
                    f"{now} instead of {met} requests have met the fault in {timeout_s} s"
                )
            time.sleep(_PAUSE_S)

    def _counts(self) -> Iterator[dict[str, Any]]:
        for url, number in self._numbers.items():
            listed = _ask("GET", url + _PATH)["faults"]
            found = next((each for each in listed if each["number"] == number), None)
            if found is None:
                raise KorvetBrokerError("the fault was cleared")
            yield found


class Faults:
    """The faults of brokers. Methods raise KorvetBrokerError, which names what is wrong in a request."""

    def __init__(self, admin_urls: Callable[[], Sequence[str]]) -> None:
        """`admin_urls`: returns the URL of the admin endpoint of each broker that runs."""
        self._admin_urls = admin_urls

    def fail(self, api: str, error: str, **which: Unpack[Which]) -> Fault:
        """Answer requests of an API, such as `Produce`, with an error, such as `NOT_LEADER_OR_FOLLOWER`.

        Nothing is done for them. Of a request for several topics, partitions or groups, only those that match
        get the error.
        """
        return self._add(which, api=api, action="fail", error=error)

    def delay(self, api: str, ms: int, **which: Unpack[Which]) -> Fault:
        """Handle requests as usual, and respond that much later."""
        return self._add(which, api=api, action="delay", ms=ms)

    def disconnect(self, api: str, **which: Unpack[Which]) -> Fault:
        """Close the connections of requests. Nothing is done for them."""
        return self._add(which, api=api, action="disconnect")

    def ignore(self, api: str, **which: Unpack[Which]) -> Fault:
        """Do nothing for requests, and never respond. Their connections stay open."""
        return self._add(which, api=api, action="ignore")

    def lose_answer(self, api: str, **which: Unpack[Which]) -> Fault:
        """Handle requests as usual, and close their connections in place of the responses."""
        return self._add(which, api=api, action="lose_answer")

    def listed(self) -> list[dict[str, Any]]:
        """Returns the faults of each broker since `clear`: what was asked for, with `met` and `left`. A fault
        that no request will meet any more is among them.
        """
        return [fault for url in self._admin_urls() for fault in _ask("GET", url + _PATH)["faults"]]

    def clear(self) -> None:
        """Forget all faults. Requests without a response stay without one."""
        for url in self._admin_urls():
            _ask("DELETE", url + _PATH)

    def move_leader(self, topic: str, partition: int = 0) -> int:
        """Let another broker lead the partition in a new leader epoch, which is returned; or the same one, if
        there is no other. Until then clients get NOT_LEADER_OR_FOLLOWER. The former leader leads its other
        partitions in that epoch, too.
        """
        moved = self._event("move-leader", topic=topic, partition=partition)
        return int(moved["leader_epoch"])

    def move_coordinator(self, *, group: str | None = None, transactional_id: str | None = None) -> None:
        """As `move_leader`, for the partition of `__consumer_offsets` or `__transaction_state`. The
        new coordinator loads its groups or transactions.
        """
        self._event("move-coordinator", group=group, transactional_id=transactional_id)

    def expire_member(self, group: str, member: str) -> list[str]:
        """End the session of a group's member now. `member`: its member ID, or its client ID, which may be
        that of several members. Returns the member IDs.
        """
        return list(self._event("expire-member", group=group, member=member)["members"])

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction as if its timeout were over: its producer has an old epoch then."""
        self._event("abort-transaction", transactional_id=transactional_id)

    def _add(self, which: Which, **fault: object) -> Fault:
        fields = {**fault, **which}
        return Fault({url: _ask("POST", url + _PATH, fields)["number"] for url in self._admin_urls()})

    def _event(self, name: str, **fields: object) -> dict[str, Any]:
        """Ask any broker; it names the one that has to do it."""
        given = {key: value for key, value in fields.items() if value is not None}
        return _ask("POST", f"{self._admin_urls()[0]}{_PATH}/{name}", given)


def _ask(method: str, url: str, fields: Mapping[str, object] | None = None) -> dict[str, Any]:
    import http.client  # noqa: PLC0415  # takes a tenth of the time of all imports of korvet.testing

    place = urlsplit(url)
    body = None if fields is None else json.dumps(fields).encode()
    connection = http.client.HTTPConnection(place.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request(method, place.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise KorvetBrokerError(f"the broker's admin endpoint {url} does not answer: {error}") from error
    finally:
        connection.close()
    if response.status == HTTPStatus.TEMPORARY_REDIRECT:
        return _ask(method, response.headers["Location"], fields)
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise KorvetBrokerError(content.decode().strip())
    answer: dict[str, Any] = json.loads(content)
    return answer

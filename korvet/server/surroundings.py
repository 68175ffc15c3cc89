"""What a connection uses of the rest of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.api.common.listener_counts import ListenerCounts
    from korvet.server.backpressure import Backpressure
    from korvet.server.response_slot import ResponseSlot
    from korvet.server.turns import Turns


_Connection_contra = TypeVar("_Connection_contra", contravariant=True)


class OpenConnections(Protocol[_Connection_contra]):
    """The connections that count towards the limits and are watched for idleness."""

    def join(self, connection: _Connection_contra) -> None:
        """Watch a connection from now on."""

    def leave(self, connection: _Connection_contra) -> None:
        """Forget a connection that has ended."""

    @property
    def counts(self) -> Mapping[str, ListenerCounts]:
        """What is counted, by listener."""

    def note_refused(self, host: str, reason: str) -> None:
        """Log that the connection of a host is refused."""


class Dispatch(Protocol[_Connection_contra]):
    """Handles the frames of all connections."""

    @property
    def backpressure(self) -> Backpressure:
        """Holds back requests with records."""

    def __call__(self, connection: _Connection_contra, frame: memoryview, slot: ResponseSlot) -> None:
        """Handle a frame (without its length), calling the slot once, now or later."""

    @property
    def turns(self) -> Turns:
        """Divides the event loop's time between large requests."""

    def note_event(self) -> None:
        """See BusyPolling.note."""

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Call back at the end of the event loop's current iteration."""

    def check_lease(self) -> None:
        """Stop leading partitions if the broker's lease has expired. Called before requests are taken."""

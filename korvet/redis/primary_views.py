"""What sentinels know about a primary, and which server to use by that. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from korvet.redis.slots import NodeAddress

# Limits how long no server is used while a sentinel performs a failover. A promotion takes a second, on a
# busy machine several. If it fails, the sentinel reports a failover in progress until its failover-timeout,
# which may be minutes.
HOLD_S: Final = 10.0
_IN_PROGRESS: Final = "failover_in_progress"


class View(msgspec.Struct, frozen=True):
    """What one sentinel knows about the primary."""

    primary: NodeAddress
    epoch: int
    """The version of the sentinels' configuration: each failover increments it."""
    failing_over: bool = False
    """Whether this sentinel performs a failover, and no replica has been promoted yet."""
    replicas: int = 0
    """How many replicas of that primary this sentinel knows, those that it does not reach too."""


def parse_view(current: list[bytes], described: list[bytes], replicas: list[list[bytes]] | None) -> View:
    """The replies to SENTINEL GET-MASTER-ADDR-BY-NAME, SENTINEL MASTER and SENTINEL REPLICAS (None if the
    user may not run that). Raises ValueError or KeyError if they are irregular.

    During a failover, the first one names the promoted replica as soon as it is promoted, and the others
    still describe the former primary.
    """
    host, port = (word.decode() for word in current)
    fields = _fields_of(described)
    same = (fields["ip"], fields["port"]) == (host, port)
    in_progress = _IN_PROGRESS in fields["flags"].split(",")
    count = _count(replicas, fields) if same else 0
    return View((host, int(port)), int(fields["config-epoch"]), same and in_progress, count)


def _count(replicas: list[list[bytes]] | None, primary: dict[str, str]) -> int:
    """The number of replicas. A sentinel also counts tools that have received a snapshot, such as `korvet
    backup`, as replicas with port 0.
    """
    if replicas is None:
        return int(primary.get("num-slaves", "0"))
    return sum(_fields_of(replica)["port"] != "0" for replica in replicas)


def _fields_of(described: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in described]
    return dict(zip(words[::2], words[1::2], strict=True))


class PrimaryViews:
    """The views of all sentinels, and the server to use by them.

    A sentinel takes over a higher epoch only from a failover that a majority has authorized. So the view with
    the highest epoch is right, whatever other sentinels still say.

    From the beginning of a failover to the promotion, no server is used: what the former primary accepts then
    may not reach the promoted replica.
    """

    def __init__(self, primary: NodeAddress) -> None:
        """`primary`: the server to use until the first view is known."""
        self._views: dict[Hashable, View] = {None: View(primary, -1)}
        self._failing_over_since_s: dict[Hashable, float] = {}

    @property
    def replicas(self) -> int:
        """How many replicas the sentinels know that name the primary to use."""
        views = self._views.values()
        return max(view.replicas for view in views if view.primary == newest_of(views).primary)

    def note(self, sentinel: Hashable, view: View, now_s: float) -> None:
        """The newest view of a sentinel. It stays when the sentinel does not answer: the sentinel may still
        promote a replica.
        """
        self._views[sentinel] = view
        if view.failing_over:
            self._failing_over_since_s.setdefault(sentinel, now_s)
        else:
            self._failing_over_since_s.pop(sentinel, None)

    def primary(self, now_s: float) -> NodeAddress | None:
        """The server to use; None to use none until the promotion, for at most HOLD_S."""
        newest = newest_of(self._views.values())
        for sentinel, since_s in self._failing_over_since_s.items():
            if self._views[sentinel].epoch == newest.epoch and now_s < since_s + HOLD_S:
                return None
        return newest.primary


def newest_of(views: Iterable[View]) -> View:
    """The view that is right, of at least one."""
    return max(views, key=lambda view: view.epoch)

"""What a server reports about its replicas (INFO replication). No I/O."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

import msgspec

from korvet.redis.info import parse_info

_NAMED: Final = re.compile(r"slave\d+")
# A replica reports its offset every second. Redis and Valkey have the same limit for min-replicas-to-write.
_MOST_LAG_S: Final = 10
_ONLINE: Final = "online"
# A second connection of a replica, which receives the snapshot (dual-channel-replication-enabled of Valkey).
_SNAPSHOT_CHANNEL: Final = "type=rdb-channel"


class Replica(msgspec.Struct, frozen=True):
    """A replica as its primary reports it."""

    host: str
    port: int
    """0 if the replica accepts no connections."""
    state: str
    """`online` once it has received all data."""
    offset: int
    """The replication offset up to which the replica has reported the data, in bytes."""
    lag_s: int
    """Seconds since its last report."""

    @property
    def is_online(self) -> bool:
        """Whether the replica has received all data."""
        return self.state == _ONLINE

    @property
    def is_in_sync(self) -> bool:
        """Whether the replica follows the primary."""
        return self.is_online and self.lag_s <= _MOST_LAG_S

    @property
    def takes_snapshot(self) -> bool:
        """Whether this is a tool that receives one snapshot, as `korvet backup` and `redis-cli --rdb` do, and
        never follows the primary.
        """
        return not self.port and not self.is_online


class Replication(msgspec.Struct, frozen=True, dict=True):
    """INFO replication of one server."""

    is_replica: bool
    history: str
    """The id of the server's history (master_replid), which changes when a replica becomes the primary, and
    when the server is restarted.
    """
    former_history: str
    """The history before that (master_replid2)."""
    former_end: int
    """The replication offset from which on that history is not in this server (second_repl_offset); -1
    without one.
    """
    offset: int
    """The server's replication offset, in bytes."""
    attached: int
    """Connected replicas, including those that are not named."""
    replicas: tuple[Replica, ...]
    """The named replicas, in the server's order."""

    @property
    def standing(self) -> tuple[Replica, ...]:
        """The named replicas without tools that receive one snapshot."""
        return tuple(replica for replica in self.replicas if not replica.takes_snapshot)

    @cached_property
    def in_sync(self) -> int:
        """The number of replicas that follow the primary."""
        return sum(replica.is_in_sync for replica in self.replicas)


def parse_replication(reply: bytes) -> Replication:
    """A reply to INFO replication; what it lacks is 0, -1 or empty."""
    fields = parse_info(reply)
    named = [text for name, text in fields.items() if _NAMED.fullmatch(name)]
    channels = [text for text in named if _SNAPSHOT_CHANNEL in text]
    return Replication(
        is_replica=fields.get("role") == "slave",
        history=fields.get("master_replid", ""),
        former_history=fields.get("master_replid2", ""),
        former_end=int(fields.get("second_repl_offset", "-1")),
        offset=int(fields.get("master_repl_offset", "0")),
        attached=int(fields.get("connected_slaves", "0")) - len(channels),
        replicas=tuple(_replica(text) for text in named if text not in channels),
    )


def _replica(text: str) -> Replica:
    pairs = dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)
    return Replica(
        pairs.get("ip", ""),
        int(pairs.get("port", "0")),
        pairs.get("state", ""),
        int(pairs.get("offset", "0")),
        int(pairs.get("lag", "0")),
    )

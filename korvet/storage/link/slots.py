"""Slots of Redis Cluster: which one a key lies in, whose it is, and what a redirection says. No I/O."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from korvet.storage.errors import RedisFault

SLOTS: Final = 16384
# Error replies of a node that did nothing because the key's slot is elsewhere, on its way, or nobody's now.
REDIRECTIONS: Final = frozenset(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"))

Place = tuple[str, int]
"""Host and port of a node."""


def slot_of(key: bytes) -> int:
    """The slot of a key: CRC16 (XMODEM) of its hash tag, or of all of it, modulo 16384 (CLUSTER KEYSLOT)."""
    opened = key.find(b"{")
    if opened >= 0:
        closed = key.find(b"}", opened + 1)
        if closed > opened + 1:
            key = key[opened + 1 : closed]
    return binascii.crc_hqx(key, 0) % SLOTS


class SlotRange(msgspec.Struct, frozen=True):
    """The slots first .. last, whose primary is at `primary`."""

    first: int
    last: int
    primary: Place
    replicas: tuple[Place, ...]


def parse_slots(reply: list[Any], asked: str) -> list[SlotRange]:
    """The reply of CLUSTER SLOTS; `asked`, the host that gave it, stands for hosts that it does not name."""
    return [
        SlotRange(first, last, _place(primary, asked), tuple(_place(replica, asked) for replica in replicas))
        for first, last, primary, *replicas in reply
    ]


def _place(node: list[Any], asked: str) -> Place:
    host = (node[0] or b"").decode()
    # "?" where the cluster prefers host names and the node has none.
    return asked if host in {"", "?"} else host, int(node[1])


def redirected_to(fault: RedisFault, asked: str) -> Place:
    """Where MOVED <slot> <host>:<port> and ASK point to; the host may be missing, or an IPv6 address."""
    host, _, port = fault.message.split()[2].rpartition(":")
    return host or asked, int(port)

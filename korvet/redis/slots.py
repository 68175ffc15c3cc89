"""Slots of Redis Cluster: the slot of a key, the owner of a slot, and the target of a redirection. No I/O."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from korvet.redis.errors import RedisFault

SLOTS: Final = 16384
# Error replies of a node that did nothing because another node has the key's slot, because the slot is being
# moved, or because no node has it now.
REDIRECTIONS: Final = frozenset(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"))

NodeAddress = tuple[str, int]
"""Host and port."""
UNNAMED: Final = "?"
"""The host of a node without a host name in a cluster that prefers host names."""


def slot_of(key: bytes) -> int:
    """The slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key, modulo 16384 (CLUSTER
    KEYSLOT).
    """
    opened = key.find(b"{")
    if opened >= 0:
        closed = key.find(b"}", opened + 1)
        if closed > opened + 1:
            key = key[opened + 1 : closed]
    return binascii.crc_hqx(key, 0) % SLOTS


class SlotRange(msgspec.Struct, frozen=True):
    """The slots first .. last, with the addresses of their primary and its replicas."""

    first: int
    last: int
    primary: NodeAddress
    replicas: tuple[NodeAddress, ...]


def parse_slots(reply: list[Any], asked: str) -> list[SlotRange]:
    """The reply to CLUSTER SLOTS from the host `asked`, which takes the place of hosts that it does not
    name.
    """
    return [
        SlotRange(
            first, last, _address(primary, asked), tuple(_address(replica, asked) for replica in replicas)
        )
        for first, last, primary, *replicas in reply
    ]


def _address(node: list[Any], asked: str) -> NodeAddress:
    host = (node[0] or b"").decode()
    if host == UNNAMED:
        # Redis 7 and later report the address of such a node, too.
        others = dict(zip(*[iter(node[3])] * 2, strict=True)) if len(node) > 3 else {}
        host = others.get(b"ip", b"").decode()
    return host or asked, int(node[1])


def count_replicas(nodes: bytes) -> int:
    """How many replicas the node that was asked has, those that the cluster does not reach too (CLUSTER
    NODES).
    """
    lines = [line.split() for line in nodes.decode("utf-8", "replace").splitlines()]
    # Node ID, address, flags, node ID of the primary.
    myself = {words[0] for words in lines if "myself" in words[2].split(",")}
    return sum(words[3] in myself for words in lines)


def redirected_to(fault: RedisFault, asked: str) -> NodeAddress:
    """The target of MOVED <slot> <host>:<port> and of ASK; the host may be missing, UNNAMED, or an IPv6
    address.
    """
    host, _, port = fault.message.split()[2].rpartition(":")
    return host or asked, int(port)

"""Leases on node ids, by Redis's clock: what makes a process a live broker of its keyspace."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.storage.brokers.assignment import Assignment, Broker
from korvet.storage.errors import StoreError
from korvet.storage.fields import read_fields
from korvet.storage.link.clock import steady_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from korvet.config.address import Address
    from korvet.storage.link.commands import Commands

_WAIT_STEP_S: Final = 0.2
# The first version of an assignment is 0, as the first leader epoch is in Kafka.
NO_VERSION: Final = -1
_HIGHEST_PORT: Final = 65_535
# A name in DNS has fewer characters.
_LONGEST_HOST: Final = 255
NO_ENTRY: Final = "it is no broker's entry"
_ENTRY: Final = re.compile(rb"\d+ \S+ (\d+) -?\d+ -?\d+ (.*)", re.DOTALL)
# A node id and the version since which it is missing, as in the cluster's hash.
_DEPARTURE: Final = re.compile(rb"\b(\d{1,10}):(\d{1,15})\b")


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a lease; enough to see on the same machine whether it still lives."""

    host: str
    pid: int
    started: str
    """The process's start time in clock ticks, or "" where the system does not tell."""
    namespace: str
    """Boot and process-id namespace: pids mean the same only within one."""

    @classmethod
    def this_process(cls) -> Holder:
        """Ourselves."""
        return cls(socket.gethostname(), os.getpid(), _start_time(os.getpid()), _pid_namespace())

    def is_dead(self) -> bool:
        """Whether the process is known to be gone: False where that cannot be told from here."""
        namespace = _pid_namespace()
        if not namespace or self.namespace != namespace or self.host != socket.gethostname():
            return False
        return _start_time(self.pid) != self.started


class Standing(msgspec.Struct, frozen=True):
    """What Redis says when a lease is renewed."""

    version: int
    """Of the assignment."""
    catalogue: int
    """The version of the topic catalogue."""
    settled_assignment: int | None
    """The lowest version that another broker has settled; None without others."""
    settled_catalogue: int | None
    assignment: Assignment | None
    """None where it is the version that is known already."""
    damaged: dict[bytes, str]
    """Fields of the brokers' hash that cannot be read, with the reason."""
    unreadable: tuple[int, ...]
    """Node ids among them, to be deleted with the next renewal."""


class Description(msgspec.Struct, frozen=True):
    """What a broker says of itself: where clients find it, and which process it is."""

    host: str
    port: int
    process: Holder
    listeners: tuple[tuple[str, str, int], ...] = ()


class NodeIdTaken(StoreError):
    """Another live broker has our node id."""


class Lease:
    """A lease on a node id, by Redis's clock; who holds one is a live broker."""

    def __init__(
        self,
        commands: Commands,
        node_id: int,
        endpoint: Address,
        lease_ms: int,
        listeners: Mapping[str, Address],
    ) -> None:
        """Use `take`."""
        self._commands = commands
        self._node_id = node_id
        self._lease_ms = lease_ms
        self._token = uuid.uuid4().hex
        self.asked_s = 0.0
        """When the newest request was sent, by `steady_s`: its reply describes a later moment."""
        self._description = msgspec.json.encode(
            Description(
                *endpoint,
                Holder.this_process(),
                tuple((name, host, port) for name, (host, port) in listeners.items()),
            )
        )

    @classmethod
    async def take(
        cls,
        commands: Commands,
        node_id: int,
        endpoint: Address,
        lease_ms: int,
        listeners: Mapping[str, Address],
    ) -> tuple[Lease, Standing]:
        """Take the node id over from nobody or from a dead process, or wait until an unrenewed lease lapses.

        Raises StoreError, naming the holder, where the holder renews its lease.
        """
        lease = cls(commands, node_id, endpoint, lease_ms, listeners)
        reply = await lease._ask()
        holder = _holder(reply) if reply[0] == b"refused" else None
        if holder is not None and holder.is_dead():
            reply = await lease._ask(reply[2])
        if reply[0] == b"refused":
            reply = await lease._outwait(reply)
        return lease, _standing(reply)

    async def renew(
        self,
        known: int,
        latest: int,
        settled_assignment: int,
        settled_catalogue: int,
        unreadable: Iterable[int] = (),
    ) -> Standing:
        """Renew the lease, or take it anew if it has lapsed.

        known: the version of the assignment that need not be returned; latest: the newest one heard of;
        unreadable: node ids whose entries are to be deleted, as nobody can read them. Raises NodeIdTaken,
        KeyspaceLost and StorageError. Function korvet_lease.
        """
        reply = await self._ask(b"", known, latest, settled_assignment, settled_catalogue, unreadable)
        if reply[0] == b"refused":
            raise self._taken(reply)
        return _standing(reply)

    async def stands(self, version: int) -> bool:
        """Whether our entry is still there and the assignment still has this version, for the time in which
        Redis takes no writes. Raises StorageError.
        """
        brokers, cluster = self._keys()
        self.asked_s = steady_s()
        read = self._commands.links(brokers).read
        entry, stored = await asyncio.gather(
            read.call("HGET", brokers, self._node_id), read.call("HGET", cluster, "assignment")
        )
        # An entry's second word is the token: see ENTRY in lua/lease.lua.
        words = [] if entry is None else entry.split(maxsplit=2)
        return words[1:2] == [self._token.encode()] and stored == b"%d" % version

    async def release(self) -> None:
        """Give the lease back, so that others need not wait for its end. Raises StorageError."""
        await self._commands.fcall("korvet_release", self._keys(), self._node_id, self._token)

    async def _outwait(self, first: list[Any]) -> list[Any]:
        """Wait as long as the lease that was refused to us lasts, and not a renewal of it.

        A holder whose entry cannot be read gets one lease's length to write it again: a damaged entry may
        never lapse.
        """
        waited_for, remaining_ms = first[2], int(first[1])
        clock = asyncio.get_running_loop().time
        patience_s = clock() + self._lease_ms / 1000
        while True:
            await asyncio.sleep(_WAIT_STEP_S)
            unreadable = _holder(first) is None and clock() > patience_s
            reply = await self._ask(waited_for if unreadable else b"")
            if reply[0] != b"refused":
                return reply
            if reply[2] != waited_for or int(reply[1]) > remaining_ms:
                raise self._taken(reply)
            remaining_ms = int(reply[1])

    def _taken(self, refused: list[Any]) -> NodeIdTaken:
        holder = _holder(refused)
        who = "an unknown process" if holder is None else f"process {holder.pid} on {holder.host}"
        return NodeIdTaken(
            f"node id {self._node_id} of keyspace {self._commands.keyspace.prefix!r} is taken by a live "
            f"broker, {who}: give each broker a node id of its own"
        )

    async def _ask(
        self,
        dead_token: bytes = b"",
        known: int = NO_VERSION,
        latest: int = NO_VERSION,
        settled_assignment: int = NO_VERSION,
        settled_catalogue: int = NO_VERSION,
        unreadable: Iterable[int] = (),
    ) -> list[Any]:
        self.asked_s = steady_s()
        reply: list[Any] = await self._commands.fcall(
            "korvet_lease",
            [*self._keys(), self._commands.keyspace.topics],
            self._node_id,
            self._token,
            self._lease_ms,
            self._description,
            dead_token,
            known,
            latest,
            settled_assignment,
            settled_catalogue,
            self._commands.cluster_id,
            "".join([" ", *(f"{node_id} " for node_id in unreadable)]),
        )
        return reply

    def _keys(self) -> list[bytes]:
        return [self._commands.keyspace.brokers, self._commands.keyspace.cluster]


def _holder(refused: list[Any]) -> Holder | None:
    """None if the holder's entry cannot be read."""
    try:
        return _description(refused[3]).process
    except ValueError:
        return None


def _standing(reply: list[Any]) -> Standing:
    _, version, catalogue, settled_assignment, settled_catalogue, strange, *changed = reply
    damaged = dict.fromkeys(strange, NO_ENTRY)
    assignment = None
    unreadable: dict[bytes, str] = {}
    if changed:
        left, *live = changed
        entries = zip(live[::3], zip(live[1::3], live[2::3], strict=True), strict=True)
        brokers, unreadable = read_fields(entries, lambda node_id, entry: _broker(node_id, *entry))
        departures = ((int(node_id), int(since)) for node_id, since in _DEPARTURE.findall(left))
        assignment = Assignment(version, brokers, [each for each in departures if each[1] <= version])
    return Standing(
        version,
        catalogue,
        settled_assignment,
        settled_catalogue,
        assignment,
        damaged | unreadable,
        tuple(int(node_id) for node_id in unreadable),
    )


def _broker(node_id: bytes, joined: int, encoded: bytes) -> Broker:
    said = _description(encoded)
    return Broker(int(node_id), said.host, said.port, joined, said.listeners)


def parse_entry(field: bytes, value: bytes) -> Broker:
    """A field of the brokers' hash, as korvet_lease writes it. Raises ValueError."""
    entry = _ENTRY.fullmatch(value)
    if entry is None or not field.isdigit():
        raise ValueError(NO_ENTRY)
    return _broker(field, int(entry[1]), entry[2])


def _description(encoded: bytes) -> Description:
    """Raises ValueError."""
    said = msgspec.json.decode(encoded, type=Description)
    hosts = (said.host, *(each[1] for each in said.listeners))
    if not all(0 < len(host) <= _LONGEST_HOST for host in hosts):
        raise ValueError("it names an impossible host")
    if not all(0 <= port <= _HIGHEST_PORT for port in (said.port, *(each[2] for each in said.listeners))):
        raise ValueError("it names an impossible port")
    return said


def _start_time(pid: int) -> str:
    try:
        # Field 22; the second one, the name, may hold spaces and brackets.
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    # A process that ended and was not waited for (Z) serves nobody.
    return "" if stat[0] in {"Z", "X"} else stat[19]


def _pid_namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""

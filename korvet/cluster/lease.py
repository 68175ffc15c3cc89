"""Leases on node ids by Redis's clock: a process with a lease is a live broker of its keyspace."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.cluster.assignment import Assignment, Broker
from korvet.cluster.versions import (
    FIRST_FORMATS,
    FIRST_PROTOCOLS,
    FORMATS,
    PROTOCOLS,
    VersionMisfit,
    Versions,
    format_problem,
    protocol_problem,
)
from korvet.metrics.counted import Counted, counter, histogram
from korvet.redis.clock import steady_s
from korvet.redis.errors import StorageError, StoreError
from korvet.redis.fields import read_fields
from korvet.redis.functions import PUBLIC_LIBRARY, library_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from korvet.config.address import Address
    from korvet.redis.commands import Commands

_WAIT_STEP_S: Final = 0.2
# The first version of an assignment is 0, as the first leader epoch is in Kafka.
NO_VERSION: Final = -1
_HIGHEST_PORT: Final = 65_535
# Limits the length of a host; a DNS name is shorter.
_LONGEST_HOST: Final = 255
# Parts of a reply to a lease that has no live brokers.
_WITHOUT_BROKERS: Final = 7
# Takes the place of the start time if the process has ended.
_ENDED: Final = "ended"
NO_ENTRY: Final = "it is not the entry of a broker"
_ENTRY: Final = re.compile(rb"\d+ \S+ (\d+) -?\d+ -?\d+ (.*)", re.DOTALL)
# A node id and the first version without it, in the cluster's hash.
_DEPARTURE: Final = re.compile(rb"\b(\d{1,10}):(\d{1,15})\b")


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a lease, with what shows on the same machine whether the process still runs."""

    host: str
    pid: int
    started: str
    """The process's start time in clock ticks; "" if the system does not report it."""
    namespace: str
    """Boot id and process-id namespace: process ids are unique within one namespace of one boot."""

    @classmethod
    def this_process(cls) -> Holder:
        """The holder that describes this process."""
        return cls(socket.gethostname(), os.getpid(), _start_time(os.getpid()), _pid_namespace())

    def is_dead(self) -> bool:
        """Whether the process has ended for certain; False if this process cannot determine that."""
        namespace = _pid_namespace()
        if not namespace or self.namespace != namespace or self.host != socket.gethostname():
            return False
        started = _start_time(self.pid)
        return started != self.started if started else _has_ended(self.pid)


class Renewal(msgspec.Struct, frozen=True):
    """The state of the cluster that Redis returns when a lease is renewed."""

    version: int
    """The version of the assignment."""
    catalogue: int
    """The version of the topic catalogue."""
    acknowledged_assignment: int | None
    """The lowest version of the assignment that another broker has acknowledged; None without other
    brokers.
    """
    acknowledged_catalogue: int | None
    """The lowest version of the topic catalogue that another broker has acknowledged; None without other
    brokers.
    """
    assignment: Assignment | None
    """None if the version is the known one."""
    damaged: dict[bytes, str]
    """The fields of the brokers' hash that cannot be read, with the reason."""
    unreadable: tuple[int, ...]
    """The node ids among the damaged fields; the next renewal deletes them."""


class Description(msgspec.Struct, frozen=True):
    """What a broker publishes about itself: its endpoints and its process."""

    host: str
    port: int
    process: Holder
    listeners: tuple[tuple[str, str, int], ...] = ()
    formats: Versions = FIRST_FORMATS
    protocols: Versions = FIRST_PROTOCOLS
    library: str = PUBLIC_LIBRARY
    """The Function library that the broker calls."""
    admin: str = ""
    """The URL of its admin endpoint; empty without one."""
    yields: tuple[tuple[str, int], ...] = ()
    """See Broker."""


class NodeIdTaken(StoreError):
    """Another live broker has the node id of this process."""


class LeaseCounts(Counted):
    """The events of one broker's lease, since the start."""

    renewals = histogram(
        "korvet_lease_renewal_seconds", "Renewals of the broker's lease, with their duration."
    )
    """The successful ones."""
    failed = counter("korvet_lease_renewal_failures_total", "Renewals of the lease that failed.")
    expired = counter(
        "korvet_lease_expired_total", "How often the broker led nothing because its lease had expired."
    )
    versions = counter(
        "korvet_assignment_changes_total", "Versions of the assignment of leaders that the broker took over."
    )
    rejoins = counter(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "How often Redis was restarted or another server took over that may lack acknowledged writes.",
    )
    """After each of them the broker leads in new leader epochs."""


class Lease:
    """A lease on a node id by Redis's clock; its holder is a live broker."""

    def __init__(
        self,
        commands: Commands,
        node_id: int,
        endpoint: Address,
        lease_ms: int,
        listeners: Mapping[str, Address],
        admin: str = "",
    ) -> None:
        """Use `take`."""
        self._commands = commands
        self._node_id = node_id
        self._lease_ms = lease_ms
        self._token = uuid.uuid4().hex
        self.counts = LeaseCounts()
        self.asked_s = 0.0
        """When the newest request was sent, by `steady_s`. The reply describes a later moment."""
        self._description = Description(
            *endpoint,
            Holder.this_process(),
            tuple((name, host, port) for name, (host, port) in listeners.items()),
            FORMATS,
            PROTOCOLS,
            library_name(),
            admin,
        )

    @classmethod
    async def take(
        cls,
        commands: Commands,
        node_id: int,
        endpoint: Address,
        lease_ms: int,
        listeners: Mapping[str, Address],
        admin: str = "",
    ) -> tuple[Lease, Renewal]:
        """Take a node id that is free or whose process has ended, or wait until its lease lapses without a
        renewal.

        Raises NodeIdTaken, which names the holder, if the holder renews its lease; and VersionMisfit.
        """
        lease = cls(commands, node_id, endpoint, lease_ms, listeners, admin)
        reply = await lease._ask()
        holder = _holder(reply) if reply[0] == b"refused" else None
        if holder is not None and holder.is_dead():
            reply = await lease._ask(reply[2])
        if reply[0] == b"refused":
            reply = await lease._wait_for_end(reply)
        return lease, lease._held(reply)

    async def renew(
        self,
        known_version: int,
        highest_version: int,
        acknowledged_assignment: int,
        acknowledged_catalogue: int,
        unreadable: Iterable[int] = (),
        *,
        rejoins: bool = False,
    ) -> Renewal:
        """Renew the lease, or take it again if it has lapsed.

        known_version: the version of the assignment that Redis need not return; highest_version: the highest
        version of the assignment that this broker has met; acknowledged_assignment, acknowledged_catalogue:
        the versions whose changes this broker has completed; unreadable: node ids whose entries Redis
        deletes, because no broker can read them; rejoins: whether this broker joins again, in a new version
        of the assignment. Raises NodeIdTaken, VersionMisfit, KeyspaceLost and StorageError. Function
        korvet_lease.
        """
        acknowledged = acknowledged_assignment, acknowledged_catalogue
        began_s = steady_s()
        try:
            reply = await self._ask(
                b"", known_version, highest_version, *acknowledged, unreadable, rejoins=rejoins
            )
        except StorageError:
            self.counts.failed += 1
            raise
        self.counts.renewals.observe(steady_s() - began_s)
        if reply[0] == b"refused":
            raise self._taken(reply)
        return self._held(reply)

    def yield_from_next_join(self, yields: tuple[tuple[str, int], ...]) -> None:
        """Publish what this broker yields: see Broker. The renewal after this has to join again."""
        self._description = msgspec.structs.replace(self._description, yields=yields)

    async def is_valid(self, version: int) -> bool:
        """Whether the entry of this broker still exists and the assignment still has this version. Used while
        Redis accepts no writes. Raises StorageError. Redis command HGET.
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

    async def release(self) -> Assignment | None:
        """Give the lease back, so that other processes need not wait for its end. Returns the assignment
        without this broker; None if no broker is left, or another process had the lease. Raises StorageError.
        Function korvet_release.
        """
        reply = await self._commands.fcall(
            "korvet_release", self._keys(), self._node_id, self._token, *self._history()
        )
        if reply[0] == b"free" or len(reply) <= _WITHOUT_BROKERS:
            return None
        return _renewal(reply).assignment

    async def _wait_for_end(self, first: list[Any]) -> list[Any]:
        """Wait until the holder's lease ends, unless the holder renews it.

        A holder whose entry cannot be read gets one lease's length to write the entry again; without this
        limit a damaged entry might never lapse.
        """
        waited_for, remaining_ms = first[2], int(first[1])
        clock = asyncio.get_running_loop().time
        unreadable_until_s = clock() + self._lease_ms / 1000
        while True:
            await asyncio.sleep(_WAIT_STEP_S)
            unreadable = _holder(first) is None and clock() > unreadable_until_s
            reply = await self._ask(waited_for if unreadable else b"")
            if reply[0] != b"refused":
                return reply
            if reply[2] != waited_for or int(reply[1]) > remaining_ms:
                raise self._taken(reply)
            remaining_ms = int(reply[1])

    def _held(self, reply: list[Any]) -> Renewal:
        """The renewal in a reply that is no refusal of the node id. Raises VersionMisfit."""
        if reply[0] != b"unfit":
            return _renewal(reply)
        kind, *details = reply[1:]
        if kind == b"format":
            problem = format_problem(details[0]) or "has changed its format"
            raise VersionMisfit(f"keyspace {self._commands.keyspace.prefix!r} {problem}")
        node_id, lowest, highest = (int(each) for each in details)
        raise VersionMisfit(protocol_problem(node_id, Versions(lowest, highest)))

    def _taken(self, refused: list[Any]) -> NodeIdTaken:
        holder = _holder(refused)
        process = "an unknown process" if holder is None else f"process {holder.pid} on {holder.host}"
        return NodeIdTaken(
            f"node id {self._node_id} of keyspace {self._commands.keyspace.prefix!r} is taken by a live "
            f"broker, {process}: give each broker a node id of its own"
        )

    async def _ask(
        self,
        dead_token: bytes = b"",
        known_version: int = NO_VERSION,
        highest_version: int = NO_VERSION,
        acknowledged_assignment: int = NO_VERSION,
        acknowledged_catalogue: int = NO_VERSION,
        unreadable: Iterable[int] = (),
        *,
        rejoins: bool = False,
    ) -> list[Any]:
        self.asked_s = steady_s()
        reply: list[Any] = await self._commands.fcall(
            "korvet_lease",
            [*self._keys(), self._commands.keyspace.topics],
            self._node_id,
            self._token,
            self._lease_ms,
            msgspec.json.encode(self._description),
            dead_token,
            known_version,
            highest_version,
            acknowledged_assignment,
            acknowledged_catalogue,
            self._commands.cluster_id,
            "".join([" ", *(f"{node_id} " for node_id in unreadable)]),
            int(rejoins),
            *self._history(),
        )
        return reply

    def _history(self) -> tuple[str, int]:
        """The history of the server's data, and whether it continues that of another server."""
        history = self._commands.links(self._commands.keyspace.cluster).server.history
        return history.id, int(history.continues_another)

    def _keys(self) -> list[bytes]:
        return [self._commands.keyspace.brokers, self._commands.keyspace.cluster]


def _holder(refused: list[Any]) -> Holder | None:
    """The holder that a refusal names; None if the holder's entry cannot be read."""
    try:
        return _description(refused[3]).process
    except ValueError:
        return None


def _renewal(reply: list[Any]) -> Renewal:
    _, version, catalogue, acknowledged_assignment, acknowledged_catalogue, malformed, *changed = reply
    damaged = dict.fromkeys(malformed, NO_ENTRY)
    assignment = None
    unreadable: dict[bytes, str] = {}
    if changed:
        left, *live = changed
        entries = zip(live[::3], zip(live[1::3], live[2::3], strict=True), strict=True)
        brokers, unreadable = read_fields(entries, lambda node_id, entry: _broker(node_id, *entry))
        departures = ((int(node_id), int(since)) for node_id, since in _DEPARTURE.findall(left))
        assignment = Assignment(version, brokers, [each for each in departures if each[1] <= version])
    return Renewal(
        version,
        catalogue,
        acknowledged_assignment,
        acknowledged_catalogue,
        assignment,
        damaged | unreadable,
        tuple(int(node_id) for node_id in unreadable),
    )


def _broker(node_id: bytes, joined: int, encoded: bytes) -> Broker:
    described = _description(encoded)
    return Broker(
        int(node_id),
        described.host,
        described.port,
        joined,
        described.listeners,
        described.protocols,
        described.library,
        described.admin,
        described.yields,
    )


def parse_entry(field: bytes, value: bytes) -> Broker:
    """The broker of a field of the brokers' hash, which korvet_lease writes. Raises ValueError."""
    entry = _ENTRY.fullmatch(value)
    if entry is None or not field.isdigit():
        raise ValueError(NO_ENTRY)
    return _broker(field, int(entry[1]), entry[2])


def _description(encoded: bytes) -> Description:
    """Decode what a broker publishes about itself. Raises ValueError."""
    decoded = msgspec.json.decode(encoded, type=Description)
    hosts = (decoded.host, *(each[1] for each in decoded.listeners))
    if not all(0 < len(host) <= _LONGEST_HOST for host in hosts):
        raise ValueError("it names an impossible host")
    if not all(
        0 <= port <= _HIGHEST_PORT for port in (decoded.port, *(each[2] for each in decoded.listeners))
    ):
        raise ValueError("it names an impossible port")
    return decoded


def _start_time(pid: int) -> str:
    try:
        # Field 22 is the start time. Field 2, the name, may contain spaces and brackets.
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return ""
    # A process that has ended and whose parent has not waited for it (Z) counts as ended.
    return _ENDED if stat[0] in {"Z", "X"} else stat[19]


def _has_ended(pid: int) -> bool:
    """Whether no process has a process id. /proc may hide those of other users (hidepid)."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False


def _pid_namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""

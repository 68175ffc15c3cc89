"""The lease on a keyspace: one live broker at a time, by Redis's clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.storage.errors import StorageError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.store import Store

# Renewed several times within its length, so that one slow answer loses nothing.
_RENEWALS_PER_LEASE: Final = 4
_WAIT_STEP_S: Final = 0.2

log = logging.getLogger(__name__)


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


class Lease:
    """A lease that is held and renewed until `release`."""

    def __init__(self, store: Store, node_id: int, lease_ms: int) -> None:
        """Use `take`."""
        self._store = store
        self._node_id = node_id
        self._lease_ms = lease_ms
        self._token = uuid.uuid4().hex
        self._description = msgspec.json.encode(Holder.this_process())
        self._renewing: asyncio.Task[None] | None = None
        self.on_lost: Callable[[], None] | None = None
        """Called once when somebody else has the keyspace: we must stop serving."""

    @classmethod
    async def take(cls, store: Store, node_id: int, lease_ms: int) -> Lease:
        """Take the keyspace over from nobody or from a dead process, or wait until an unrenewed lease lapses.

        Raises StoreError, naming the holder, where the holder renews its lease.
        """
        lease = cls(store, node_id, lease_ms)
        refused = await lease._ask(b"")
        if refused is not None and msgspec.json.decode(refused[4], type=Holder).is_dead():
            refused = await lease._ask(refused[3])
        if refused is not None:
            await lease._outwait(refused)
        lease._renewing = asyncio.get_running_loop().create_task(lease._renew())
        return lease

    async def _outwait(self, first: list[bytes]) -> None:
        """Wait as long as the lease that was refused to us lasts, and not a renewal of it."""
        waited_for, remaining_ms = first[3], int(first[2])
        while True:
            await asyncio.sleep(_WAIT_STEP_S)
            refused = await self._ask(b"")
            if refused is None:
                return
            if refused[3] != waited_for or int(refused[2]) > remaining_ms:
                holder = msgspec.json.decode(refused[4], type=Holder)
                raise StoreError(
                    f"keyspace {self._store.keyspace.prefix!r} is served by another broker: node "
                    f"{refused[1].decode()}, process {holder.pid} on {holder.host}"
                )
            remaining_ms = int(refused[2])

    async def _ask(self, dead_token: bytes) -> list[bytes] | None:
        """None when the lease is ours, else what the function says of the holder."""
        reply: list[bytes] = await self._store.fcall(
            "korvet_lease",
            [self._store.keyspace.brokers],
            self._node_id,
            self._token,
            self._lease_ms,
            self._description,
            dead_token,
        )
        return None if reply[0] == b"held" else reply

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 1000 / _RENEWALS_PER_LEASE)
            try:
                refused = await self._ask(b"")
            except StorageError as error:
                log.warning("the lease on the keyspace could not be renewed: %s", error)
                continue
            if refused is not None:
                log.critical("another broker has taken the keyspace: node %s", refused[1].decode())
                if self.on_lost is not None:
                    self.on_lost()
                return

    async def release(self) -> None:
        """Give the lease back, so that the next broker need not wait."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        try:
            await self._store.fcall(
                "korvet_release", [self._store.keyspace.brokers], self._node_id, self._token
            )
        except StorageError as error:
            log.warning("the lease on the keyspace is left to lapse: %s", error)


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

"""Asynchronous replication of one server: its history, its log of units, its replicas, and WAIT.

A unit is what Redis applies as a whole: a command, a script or a transaction. A replica gets the units over
the simulated network, in order, and acknowledges each. After a promotion, a replica keeps the history of its
former primary up to its own offset as its second history (`master_replid2`, `second_repl_offset`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from robustness.simulation.redis.values import Database, Fault

if TYPE_CHECKING:
    from robustness.simulation.network import Pipe
    from robustness.simulation.redis.scripting import Function
    from robustness.simulation.redis.server import RedisServer, Session

NO_HISTORY: Final = "0" * 40
# Interval of fsync with appendfsync=everysec.
FSYNC_S: Final = 1.0


class Unit(NamedTuple):
    """Commands that take effect together, and the replication offset after them."""

    commands: list[list[bytes]]
    now_us: int
    end: int

    @classmethod
    def of(cls, commands: list[list[bytes]], now_us: int, offset: int) -> Unit:
        """A unit that begins at a replication offset."""
        size = sum(len(part) + 8 for args in commands for part in args)
        return cls(commands, now_us, offset + size)


class Replica:
    """What a primary knows of one replica."""

    def __init__(self, server: RedisServer, pipe: Pipe, offset: int) -> None:
        self.server = server
        self.pipe = pipe
        self.offset = offset
        """The offset that it has acknowledged."""
        self.acknowledged_s = -1.0
        """The time of the last acknowledgement; negative while the replica loads its first copy."""


class _History(NamedTuple):
    """The histories of a primary, which its replica takes over."""

    history: str
    second_history: str
    second_offset: int


class _Copy(NamedTuple):
    """All data of a primary at the time of a full synchronisation."""

    db: Database
    libraries: dict[bytes, bytes]
    functions: dict[bytes, Function]
    offset: int


class _Waiter(NamedTuple):
    """A client that is blocked by WAIT or WAITAOF."""

    session: Session
    offset: int
    replicas: int
    local: bool | None
    """Whether this server's own fsync is waited for; None with WAIT."""


class Replication:
    """The replication of one server."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.history = server.network.token(40)
        self.second_history = NO_HISTORY
        self.second_offset = -1
        self.offset = 0
        self.primary: RedisServer | None = None
        self.replicas: dict[str, Replica] = {}
        self.least_replicas = 0
        """min-replicas-to-write"""
        self.largest_lag_s = 10.0
        """min-replicas-max-lag"""
        self.synced_offset = 0
        """The offset up to which the append-only file is on disk."""
        self._base = Database()
        self._base_functions: dict[bytes, bytes] = {}
        self._log: list[Unit] = []
        self._waiters: list[_Waiter] = []
        self._syncing = False

    # The log

    def append(self, unit: Unit) -> None:
        """Write a unit to the log, and send it to the replicas."""
        self._log.append(unit)
        self.offset = unit.end
        for replica in self.replicas.values():
            replica.pipe.send(unit)
        if not self._syncing:
            self._syncing = True
            self._server.loop.call_later(FSYNC_S, self._sync, context=self._server.process.context)

    def _sync(self) -> None:
        self._syncing = False
        self.synced_offset = self.offset
        self._release()

    def _take_all(self, copy: _Copy) -> None:
        """Replace all data by those of a primary (full synchronisation)."""
        server = self._server
        server.db = copy.db
        server.libraries, server.functions = copy.libraries, copy.functions
        self._base, self._base_functions = server.db.copy(), dict(server.libraries)
        self._log = []
        self.offset = self.synced_offset = copy.offset

    def restart(self, kept_offset: int) -> None:
        """Load what the append-only file has up to an offset. The server gets a new history."""
        server = self._server
        kept = [unit for unit in self._log if unit.end <= kept_offset]
        server.db = self._base.copy()
        server.libraries, server.functions = {}, {}
        for source in self._base_functions.values():
            server.change_functions([b"LOAD", source])
        for unit in kept:
            server.apply(unit)
        self._log = kept
        self.offset = self.synced_offset = kept[-1].end if kept else 0
        self.history, self.second_history, self.second_offset = server.network.token(40), NO_HISTORY, -1
        self.primary, self.replicas, self._waiters, self._syncing = None, {}, [], False

    # Replicas

    def follow(self, primary: RedisServer) -> None:
        """Become a replica (REPLICAOF). What the primary does not have is lost."""
        self._unblock("UNBLOCKED force unblock from blocking operation, instance state changed")
        for replica in self.replicas.values():
            replica.pipe.close()
        self.replicas = {}
        if self.primary is not None:
            self.primary.replication.detach(self._server)
        self.primary = primary
        primary.replication.attach(self._server)

    def detach(self, replica: RedisServer) -> None:
        """Forget a replica."""
        found = self.replicas.pop(replica.process.name, None)
        if found is not None:
            found.pipe.close()

    def attach(self, server: RedisServer) -> None:
        """Serve a new replica: from its offset if it has the same history up to there, else with all data."""
        theirs = server.replication
        pipe = self._server.network.pipe(self._server.process, server.process, theirs._arrived)
        replica = self.replicas[server.process.name] = Replica(server, pipe, theirs.offset)
        pipe.send(_History(self.history, self.second_history, self.second_offset))
        if self._continues(theirs):
            for unit in self._log:
                if unit.end > theirs.offset:
                    pipe.send(unit)
            return
        replica.offset = 0
        mine = self._server
        pipe.send(_Copy(mine.db.copy(), dict(mine.libraries), dict(mine.functions), self.offset))

    def _continues(self, theirs: Replication) -> bool:
        start = self.offset if not self._log else self._log[0].end
        if theirs.offset > self.offset or (theirs.offset < start and theirs.offset != self.offset):
            return False
        return theirs.history == self.history or (
            theirs.history == self.second_history and theirs.offset < self.second_offset
        )

    def _arrived(self, item: Any) -> None:
        """A message from the primary."""
        if isinstance(item, Unit):
            self._server.apply(item)
            self._log.append(item)
            self.offset = self.synced_offset = item.end
        elif isinstance(item, _Copy):
            self._take_all(item)
        else:
            self.history, self.second_history, self.second_offset = item
        if self.primary is not None:
            primary, me, offset = self.primary, self._server, self.offset
            back = self._server.network.latency_s(me.process, primary.process)
            if back is not None:
                self._server.loop.call_later(
                    back, primary.replication.acknowledged, me, offset, context=primary.process.context
                )

    def acknowledged(self, server: RedisServer, offset: int) -> None:
        """A replica has applied everything up to an offset."""
        replica = self.replicas.get(server.process.name)
        if replica is not None:
            replica.offset = max(replica.offset, offset)
            replica.acknowledged_s = self._server.loop.time()
            self._release()

    def promote(self) -> None:
        """Become a primary (REPLICAOF NO ONE) with a new history."""
        if self.primary is not None:
            self.primary.replication.detach(self._server)
        self.primary = None
        self.second_history, self.second_offset = self.history, self.offset + 1
        self.history = self._server.network.token(40)

    def enough_replicas(self) -> bool:
        """Whether min-replicas-to-write is met."""
        if not self.least_replicas:
            return True
        return sum(map(self.is_good, self.replicas.values())) >= self.least_replicas

    def is_good(self, replica: Replica) -> bool:
        """Whether a replica is online and not late."""
        if replica.acknowledged_s < 0:
            return False
        idle = replica.offset >= self.offset and replica.pipe.open
        return idle or self._server.loop.time() - replica.acknowledged_s <= self.largest_lag_s

    # WAIT

    def wait(self, session: Session, replicas: int, timeout_ms: int, local: bool | None = None) -> Any:
        """The reply to WAIT and WAITAOF; None if it follows later. Raises Fault on a replica."""
        if self.primary is not None:
            raise Fault(
                "ERR WAIT cannot be used with replica instances. Please also note that writes to "
                "replicas are just local and are not propagated."
            )
        waiter = _Waiter(session, session.written_offset, replicas, local)
        if self._is_met(waiter):
            return self._answer(waiter)
        self._waiters.append(waiter)
        if timeout_ms:
            context = self._server.process.context
            self._server.loop.call_later(timeout_ms / 1000, self._expire, waiter, context=context)
        return None

    def forget(self, session: Session) -> None:
        """A client has gone."""
        self._waiters = [waiter for waiter in self._waiters if waiter.session is not session]

    def _count(self, waiter: _Waiter) -> int:
        return sum(
            replica.acknowledged_s >= 0 and replica.offset >= waiter.offset
            for replica in self.replicas.values()
        )

    def _is_met(self, waiter: _Waiter) -> bool:
        on_disk = not waiter.local or self.synced_offset >= waiter.offset
        return on_disk and self._count(waiter) >= waiter.replicas

    def _answer(self, waiter: _Waiter) -> Any:
        if waiter.local is None:
            return self._count(waiter)
        return [int(self.synced_offset >= waiter.offset), self._count(waiter)]

    def _release(self) -> None:
        for waiter in list(self._waiters):
            if self._is_met(waiter):
                self._expire(waiter)

    def _expire(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            waiter.session.unblock(self._answer(waiter))

    def _unblock(self, reason: str) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.session.unblock(Fault(reason))

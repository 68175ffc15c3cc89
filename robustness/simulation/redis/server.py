"""One simulated Redis server: its clients, its transactions and functions, and what it writes to its log."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import hiredis

from robustness.simulation.redis import group_commands, plain, stream_commands
from robustness.simulation.redis.administration import ADMINISTRATION
from robustness.simulation.redis.registry import COMMANDS
from robustness.simulation.redis.replication import Replication, Unit
from robustness.simulation.redis.scripting import Function, scripts
from robustness.simulation.redis.values import OK, Database, Fault, Status
from robustness.simulation.transport import Closing, SimulatedProtocol
from robustness.simulation.virtual_time import EPOCH_S

if TYPE_CHECKING:
    from robustness.simulation.loop import SimulatedLoop
    from robustness.simulation.network import Network
    from robustness.simulation.process import Process
    from robustness.simulation.transport import SimulatedTransport

# Importing these modules registers their commands.
_REGISTERED: Final = (plain, stream_commands, group_commands)
QUEUED: Final = Status(b"QUEUED")
READONLY: Final = "READONLY You can't write against a read only replica."
OUT_OF_MEMORY: Final = "OOM command not allowed when used memory > 'maxmemory'."
NO_REPLICAS: Final = "NOREPLICAS Not enough good replicas to write."
PORT: Final = 6379
CALLS: Final = (b"FCALL", b"FCALL_RO")


class Blocked:
    """Stands for a reply that follows later."""


BLOCKED: Final = Blocked()


class Session(SimulatedProtocol):
    """One client's connection."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.transport: SimulatedTransport | None = None
        self.written_offset = 0
        """The replication offset after this client's last write."""
        self._reader = hiredis.Reader()
        self._queue: list[list[bytes]] | None = None
        self._is_spoiled = False
        self._is_blocked = False
        self._waiting: deque[list[bytes]] = deque()

    def connection_made(self, transport: SimulatedTransport) -> None:  # type: ignore[override]
        self.transport = transport
        self.server.sessions[self] = None

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (args := self._reader.gets()) is not False:
            self._waiting.append(args)
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.sessions.pop(self, None)
        self.server.replication.forget(self)

    def unblock(self, reply: Any) -> None:
        """Give the reply to the command that was blocked, and go on."""
        self._is_blocked = False
        self._send([encode(reply)])
        self._work()

    def _work(self) -> None:
        replies = []
        while self._waiting and not (self._is_blocked or self.server.is_handing_over):
            reply = self._execute(self._waiting.popleft())
            if reply is BLOCKED:
                self._is_blocked = True
            else:
                replies.append(encode(reply))
        self._send(replies)

    def _send(self, replies: list[bytes]) -> None:
        if replies and self.transport is not None:
            self.transport.write(b"".join(replies))

    def _execute(self, args: list[bytes]) -> Any:
        name = args[0].upper()
        try:
            if name == b"MULTI":
                self._queue, self._is_spoiled = [], False
                return OK
            if name == b"EXEC":
                return self._exec()
            if name == b"DISCARD":
                self._queue = None
                return OK
            if self._queue is not None:
                self.server.admit(name, args)
                self._queue.append(args)
                return QUEUED
            return self.server.execute(self, args)
        except Fault as fault:
            self._is_spoiled = True
            return fault

    def _exec(self) -> Any:
        queue, self._queue = self._queue, None
        if queue is None:
            raise Fault("ERR EXEC without MULTI")
        if self._is_spoiled:
            raise Fault("EXECABORT Transaction discarded because of previous errors.")
        return self.server.execute_all(self, queue)


class RedisServer:
    """One server on one simulated process; `start` makes it listen."""

    def __init__(self, loop: SimulatedLoop, network: Network, process: Process) -> None:
        self.loop = loop
        self.network = network
        self.process = process
        self.db = Database()
        self.sessions: dict[Session, None] = {}
        self.libraries: dict[bytes, bytes] = {}
        self.functions: dict[bytes, Function] = {}
        self.replication = Replication(self)
        self.settings = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec"}
        """What CONFIG GET returns, as far as korvet asks."""
        self.is_full = False
        """Whether used memory exceeds maxmemory."""
        self.is_handing_over = False
        """Whether clients wait because the replica takes over (FAILOVER)."""
        self._unit: list[list[bytes]] | None = None

    def start(self) -> None:
        """Accept clients."""
        self.process.listen(PORT, self._accept)

    def _accept(self) -> Session:
        return Session(self)

    def now_us(self) -> int:
        """The server's clock, in microseconds since the epoch."""
        return round((EPOCH_S + self.loop.time() + self.process.clock_offset_s) * 1_000_000)

    # Commands

    def admit(self, name: bytes, args: list[bytes]) -> None:
        """Check a command before it runs or is queued. Raises Fault."""
        found = COMMANDS.get(name)
        if found is None and name not in ADMINISTRATION and name not in CALLS:
            raise self._unknown(args[0].decode("latin-1"))
        if found is not None and len(args) - 1 < found.least:
            raise Fault(f"ERR wrong number of arguments for '{args[0].decode('latin-1').lower()}' command")
        if found is not None and found.writes:
            self._admit_write(deny_memory=name not in _FREEING)

    def _unknown(self, name: str) -> Fault:
        """The reply to a command that is not simulated, which fails the run; or to one of the server module,
        without which brokers work too.
        """
        fault = Fault(f"ERR unknown command '{name}', with args beginning with: ")
        if not name.startswith("KORVET."):
            self.loop.call_exception_handler({"message": "a command is not simulated", "exception": fault})
        return fault

    def _admit_write(self, *, deny_memory: bool) -> None:
        if self.replication.primary is not None:
            raise Fault(READONLY)
        if not self.replication.enough_replicas():
            raise Fault(NO_REPLICAS)
        if self.is_full and deny_memory:
            raise Fault(OUT_OF_MEMORY)

    def execute(self, session: Session, args: list[bytes]) -> Any:
        """Run one command. Returns the reply, or BLOCKED. Raises Fault."""
        self.db.set_time(self.now_us())
        self._unit = []
        try:
            return self._run(session, args)
        finally:
            self._finish_unit(session)

    def execute_all(self, session: Session, queue: list[list[bytes]]) -> list[Any]:
        """Run the commands of a transaction, which are one unit. A failed command does not end it."""
        self.db.set_time(self.now_us())
        self._unit = []
        replies: list[Any] = []
        for args in queue:
            try:
                replies.append(self._run(session, args))
            except Fault as fault:
                replies.append(fault)
        self._finish_unit(session)
        return replies

    def _run(self, session: Session, args: list[bytes]) -> Any:
        name = args[0].upper()
        self.admit(name, args)
        if name in CALLS:
            return self._call_function(args)
        found = COMMANDS.get(name)
        if found is not None:
            reply = found.run(self.db, args[1:])
            if found.writes:
                self.note(args)
            return reply
        reply = ADMINISTRATION[name](self, session, args[1:])
        return BLOCKED if reply is None else reply

    def note(self, args: list[bytes]) -> None:
        """A command has changed the data: replicas and the log get it."""
        assert self._unit is not None
        self._unit.append(args)

    def _finish_unit(self, session: Session) -> None:
        unit, self._unit = self._unit, None
        if unit:
            self.replication.append(Unit.of(unit, self.db.now_us, self.replication.offset))
            session.written_offset = self.replication.offset

    def apply(self, unit: Unit) -> None:
        """Repeat the commands of a unit, at the time at which they ran first."""
        self.db.set_time(unit.now_us)
        for args in unit.commands:
            if args[0].upper() == b"FUNCTION":
                self.change_functions(args[1:])
            else:
                COMMANDS[args[0].upper()].run(self.db, args[1:])

    # Functions

    def change_functions(self, args: list[bytes]) -> Any:
        """FUNCTION LOAD, FUNCTION DELETE and FUNCTION FLUSH. Raises Fault."""
        kind = args[0].upper()
        if kind == b"FLUSH":
            self.libraries.clear()
            self.functions.clear()
            return OK
        if kind == b"DELETE":
            if self.libraries.pop(args[1], None) is None:
                raise Fault("ERR Library not found")
            self._collect_functions()
            return OK
        if kind != b"LOAD":
            raise Fault(f"ERR unknown subcommand '{args[0].decode()}'")
        name, _ = scripts().load(args[-1])
        if name in self.libraries and args[1].upper() != b"REPLACE":
            raise Fault(f"ERR Library '{name.decode()}' already exists")
        self.libraries[name] = args[-1]
        self._collect_functions()
        return name

    def _collect_functions(self) -> None:
        """Find the functions of all libraries."""
        self.functions.clear()
        for source in self.libraries.values():
            self.functions |= scripts().load(source)[1]

    def _call_function(self, args: list[bytes]) -> Any:
        function = self.functions.get(args[1])
        if function is None:
            raise Fault("ERR Function not found")
        if function.writes:
            if args[0].upper() == b"FCALL_RO":
                raise Fault("ERR Can not execute a script with write flag using *_ro command.")
            self._admit_write(deny_memory=not function.may_exceed_memory)
        count = int(args[2])
        return scripts().call(function, args[3 : 3 + count], args[3 + count :], self._run_in_script)

    def _run_in_script(self, args: list[bytes]) -> Any:
        found = COMMANDS.get(args[0].upper())
        if found is None:
            raise Fault("ERR Unknown Redis command called from script")
        reply = found.run(self.db, args[1:])
        if found.writes:
            self.note(args)
        return reply

    # Life and death

    def administer(self, args: list[bytes]) -> None:
        """Run a command of the administrator."""
        self.execute(Session(self), args)

    def disconnect(self, how: Closing) -> None:
        """End all clients' connections."""
        for session in list(self.sessions):
            if session.transport is not None:
                session.transport.end(how)
        self.sessions.clear()


_FREEING: Final = frozenset(
    (b"DEL", b"UNLINK", b"HDEL", b"XDEL", b"XTRIM", b"XACK", b"ZREM", b"LPOP", b"RENAME", b"PEXPIRE")
)


def encode(reply: Any) -> bytes:
    """A reply in RESP2."""
    if isinstance(reply, Status):
        return b"+%b\r\n" % bytes(reply)
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, Fault):
        return b"-%b\r\n" % str(reply).replace("\r", " ").replace("\n", " ").encode()
    return b"".join([b"*%d\r\n" % len(reply), *map(encode, reply)])

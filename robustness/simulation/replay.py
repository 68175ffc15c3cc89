"""Runs recorded commands on a real server, and compares replies and keys."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, Final, Self

import hiredis
import msgspec

from korvet.redis.functions import library_source, named

if TYPE_CHECKING:
    from pathlib import Path

# Replies of these depend on the server or on the real time; keys with a time to live are not compared either.
_SKIPPED: Final = frozenset(
    name.encode()
    for name in (
        *("PING", "TIME", "INFO", "CONFIG", "CLIENT", "SELECT", "ROLE", "WAIT", "WAITAOF", "FUNCTION"),
        *("PEXPIRE", "RPUSH", "LPOP"),
    )
)
# The key that stands for the clock in the library.
_CLOCK: Final = b"clock of the simulation"


# Functions that return the live brokers, and where these begin in the reply, each with three values.
_HELD: Final = frozenset(named(name).encode() for name in ("korvet_lease", "korvet_release"))
_BROKERS_AT: Final = 7
LENGTH: Final = struct.Struct(">I")


class Difference(AssertionError):
    """The real server answered something else."""


class Real:
    """A connection to a real server whose functions read the time of the simulation."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, *commands: list[Any]) -> list[Any]:
        """Returns the replies."""
        self._socket.sendall(b"".join(hiredis.pack_command(tuple(args)) for args in commands))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 20))
            else:
                replies.append(reply)
        return replies

    def load(self) -> None:
        """Begin with no keys, and with the library."""
        clock = f"redis.call('LRANGE', '{_CLOCK.decode()}', 0, 1)"
        source = library_source().replace("redis.call('TIME')", clock)
        self.ask([b"FLUSHALL"])
        self._must(self.ask([b"FUNCTION", b"LOAD", b"REPLACE", source])[0])

    @staticmethod
    def _must(reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            raise reply

    def replay(self, tape: bytes) -> int:
        """Run the commands of recorded runs, and compare all replies. Returns their number."""
        compared = at = 0
        while at < len(tape):
            (size,) = LENGTH.unpack_from(tape, at)
            at += LENGTH.size + size
            one = msgspec.msgpack.decode(tape[at - size : at])
            if one is None:
                self.load()
            else:
                compared += self._repeat(*one)
        return compared

    def _repeat(self, at_us: int, commands: list[list[bytes]], replies: list[Any]) -> int:
        pairs = zip(commands, replies, strict=True)
        chosen = [(args, reply) for args, reply in pairs if args[0].upper() not in _SKIPPED]
        if not chosen:
            return 0
        clock: list[list[Any]] = [[b"DEL", _CLOCK], [b"RPUSH", _CLOCK, *divmod(at_us, 1_000_000)]]
        real = self.ask(*clock, *(_with_id(args, reply) for args, reply in chosen))[2:]
        for (args, simulated), answered in zip(chosen, real, strict=True):
            if comparable(args, simulated) != comparable(args, answered):
                raise Difference(f"{args}\nsimulated: {simulated}\nreal: {answered}")
        return len(chosen)


def _with_id(args: list[bytes], reply: Any) -> list[Any]:
    """XADD * with the ID that the simulated server gave."""
    if args[0].upper() == b"XADD" and b"*" in args[2:4] and isinstance(reply, bytes):
        at = args.index(b"*", 2)
        return [*args[:at], reply, *args[at + 1 :]]
    return list(args)


def comparable(args: list[bytes], reply: Any) -> Any:
    """What must be equal of a reply."""
    if isinstance(reply, hiredis.ReplyError):
        return ("fault", str(reply).partition(" ")[0])
    if isinstance(reply, dict):
        return ("fault", reply["fault"].partition(" ")[0]) if "fault" in reply else reply.get("status")
    name = args[0].upper()
    if name == b"HGETALL" and reply:
        return dict(zip(reply[::2], reply[1::2], strict=True))
    if name == b"FCALL" and args[1] in _HELD and reply and reply[0] == b"held":
        # The brokers are in the order of a hash.
        return [*reply[:_BROKERS_AT], sorted(zip(*[iter(reply[_BROKERS_AT:])] * 3, strict=True))]
    if name == b"XPENDING" and len(args) > 3 and reply:
        return [[entry, consumer, deliveries] for entry, consumer, _, deliveries in reply]
    if name == b"XINFO" and reply:
        return _information(args[1].upper(), reply)
    return _plain(reply)


def _plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_plain(each) for each in reply]
    return comparable([b""], reply) if isinstance(reply, dict | hiredis.ReplyError) else reply


def _information(kind: bytes, reply: list[Any]) -> Any:
    times = {b"idle", b"inactive", b"radix-tree-keys", b"radix-tree-nodes"}
    if kind == b"STREAM":
        return {name: value for name, value in _pairs(reply) if name not in times}
    return [{name: value for name, value in _pairs(each) if name not in times} for each in reply]


def _pairs(reply: list[Any]) -> list[tuple[bytes, Any]]:
    return list(zip(reply[::2], reply[1::2], strict=True))

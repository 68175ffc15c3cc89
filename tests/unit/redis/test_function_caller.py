"""The order of function calls when Redis has lost the library and another connection loads it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from korvet.records.kernel import pack_command
from korvet.redis.errors import Loading, RedisFault
from korvet.redis.library import FunctionCaller

if TYPE_CHECKING:
    from korvet.redis.calls import OnReply, Payload
    from korvet.redis.errors import StorageError

DONE = memoryview(b"+OK\r\n")
MISSING = RedisFault("ERR Function not found", "ERR")
CALLS = {name: pack_command("FCALL", name, 1, "key") for name in "abc"} | {"set": pack_command("SET", "k", 1)}


class Link:
    """A link whose commands are answered when the test wants it."""

    address = "server"

    def __init__(self, *, writes: bool) -> None:
        self.sent: list[tuple[Payload, OnReply]] = []
        self.answers: list[tuple[str, Any]] = []
        link: Any = self
        self.caller = FunctionCaller(link, writes=writes)

    def send(self, payload: Payload, on_reply: OnReply) -> None:
        self.sent.append((payload, on_reply))

    def call(self, *names: str) -> None:
        for name in names:
            self.caller.send(CALLS[name], lambda reply, name=name: self.answers.append((name, reply)))

    def reply(self, *replies: memoryview | StorageError) -> None:
        for reply in replies:
            self.sent.pop(0)[1](reply)

    def repeated(self) -> list[str]:
        """The calls that are sent again."""
        return [name for payload, _ in self.sent for name, call in CALLS.items() if call == payload]


def test_a_write_is_not_repeated_after_the_next_one() -> None:
    link = Link(writes=True)
    link.call("a", "b", "c")
    link.reply(MISSING, MISSING, DONE)
    assert [(name, type(reply)) for name, reply in link.answers] == [
        ("a", Loading),
        ("b", Loading),
        ("c", memoryview),
    ]
    assert link.repeated() == []


def test_writes_without_a_function_do_not_matter() -> None:
    link = Link(writes=True)
    link.call("a", "set", "b")
    link.reply(MISSING, DONE, MISSING)
    assert link.answers == [("set", DONE)]
    assert link.repeated() == ["a", "b"]


def test_reads_are_repeated_in_any_order() -> None:
    link = Link(writes=False)
    link.call("a", "b")
    link.reply(MISSING, DONE)
    assert link.answers == [("b", DONE)]
    assert link.repeated() == ["a"]

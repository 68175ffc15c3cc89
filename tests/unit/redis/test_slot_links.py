"""The order of commands on one slot whose node refuses some of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from korvet.redis.calls import Caller
from korvet.redis.errors import LinkLost, RedisFault, SlotUnavailable
from korvet.redis.slot_links import SlotCaller

if TYPE_CHECKING:
    from korvet.redis.calls import OnReply, Payload
    from korvet.redis.errors import StorageError

DONE = memoryview(b"+OK\r\n")
DOWN = RedisFault("CLUSTERDOWN the cluster is down", "CLUSTERDOWN")
MOVED = RedisFault("MOVED 7 127.0.0.1:7001", "MOVED")
TRY_AGAIN = RedisFault("TRYAGAIN multiple keys", "TRYAGAIN")


class Node(Caller):
    """A server that answers the commands when the test wants it."""

    connected = True
    address = "node"

    def __init__(self) -> None:
        self.sent: list[tuple[Payload, OnReply]] = []

    def send(self, payload: Payload, on_reply: OnReply) -> None:
        self.sent.append((payload, on_reply))

    def reply(self, *replies: memoryview | StorageError) -> None:
        for reply in replies:
            self.sent.pop(0)[1](reply)


class Slot:
    """A slot on one node, and the answers to commands on it."""

    def __init__(self) -> None:
        self.node = Node()
        self.answers: list[tuple[str, Any]] = []
        node: Any = self.node
        self.caller = SlotCaller(self, 7, node, lambda server: self.node)  # type: ignore[arg-type]

    def send(self, *names: str) -> None:
        for name in names:
            self.caller.send(name.encode(), lambda reply, name=name: self.answers.append((name, reply)))

    async def serve(self, answers: int) -> list[Payload]:
        """Execute all commands until there are so many answers; what was executed."""
        executed = []
        while len(self.answers) < answers:
            await asyncio.sleep(0.001)
            while self.node.sent:
                executed.append(self.node.sent[0][0])
                self.node.reply(DONE)
        return executed

    def kinds(self) -> list[tuple[str, type]]:
        return [(name, type(reply)) for name, reply in self.answers]

    def refresh_soon(self) -> None:
        pass

    async def follow(self, *_: Any) -> None:
        pass

    def spawn(self, _: str, work: Any) -> None:
        self.task = asyncio.ensure_future(work())


@pytest.mark.parametrize("refusal", [DOWN, MOVED], ids=["down", "moved"])
@pytest.mark.parametrize("next_reply", [DONE, LinkLost("broken")], ids=["executed", "unknown"])
async def test_no_command_is_sent_again_after_the_next_one_was_executed(
    refusal: Any, next_reply: Any
) -> None:
    """It would be executed after it. The answers keep the order."""
    slot = Slot()
    slot.send("a", "b", "c")
    slot.node.reply(refusal, refusal)
    slot.send("d")
    slot.node.reply(next_reply)
    await asyncio.sleep(0)
    assert slot.kinds() == [("a", SlotUnavailable), ("b", SlotUnavailable), ("c", type(next_reply))]
    assert [payload for payload, _ in slot.node.sent] == [b"d"]


async def test_refused_commands_are_sent_again_in_order() -> None:
    slot = Slot()
    slot.send("a", "b", "c", "d")
    slot.node.reply(DONE, DOWN, DOWN)
    slot.send("e")
    slot.node.reply(MOVED)
    sent = await slot.serve(5)
    assert sent == [b"b", b"c", b"d", b"e"]
    assert [name for name, _ in slot.answers] == list("abcde")


async def test_a_command_on_keys_that_move_waits_while_others_are_executed() -> None:
    """Other keys of the slot may still be on the node."""
    slot = Slot()
    slot.send("a", "b")
    slot.node.reply(TRY_AGAIN, DONE)
    assert await slot.serve(2) == [b"a"]
    assert [name for name, _ in slot.answers] == ["b", "a"]

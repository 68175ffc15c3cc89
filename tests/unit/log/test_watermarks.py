"""Notes of high watermarks that Redis did not take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from korvet.log.values import Ends
from korvet.log.watermarks import Watermarks
from korvet.redis.errors import LinkLost, RedisFault, TopicGone


class State(SimpleNamespace):
    """A log's state; logs are compared by identity."""

    __hash__ = object.__hash__


class Notes:
    """Keeps the notes that are sent, and answers them."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []

    def send(self, command: bytes, on_reply: Any) -> None:
        self.sent.append((command, on_reply))

    def answer(self, reply: Any) -> bytes:
        command, on_reply = self.sent.pop(0)
        on_reply(reply)
        return command

    def state(self, name: str, end: int) -> Any:
        return State(
            stream=name.encode(),
            meta=f"{{{name}}}:meta".encode(),
            ends=Ends(0, 0, 0, end, end),
            topic=SimpleNamespace(topic_id="id"),
            highest_epoch=b"3",
            bias=0,
            links=SimpleNamespace(write_functions=self),
            release=object(),
            known=SimpleNamespace(has_watermark=True),
            refusal=None,
        )


LOST, TAKEN = LinkLost("no connection"), memoryview(b":1\r\n")


async def test_a_lost_note_is_sent_again() -> None:
    notes, watermarks = Notes(), Watermarks()
    watermarks.changed(notes.state("a", 5))
    watermarks.note_all()
    first = notes.answer(LOST)
    watermarks.note_all()
    assert notes.answer(TAKEN) == first
    watermarks.note_all()
    assert notes.sent == []
    await watermarks.close()


def test_lost_notes_of_closed_logs_precede_the_next_claims() -> None:
    """Redis takes none of an earlier epoch after that."""
    notes, watermarks = Notes(), Watermarks()
    closed = [notes.state(name, 5) for name in ("a", "b", "c")]
    for state in closed:
        watermarks.end(state)
        state.refusal = TopicGone("closed")
    lost = [notes.answer(LOST), notes.answer(LOST)]
    # Redis refuses this one for good.
    notes.answer(RedisFault("no permission", "NOPERM"))
    watermarks.note_former(b"b")
    assert notes.answer(LOST) == lost[1]
    watermarks.note_lost()
    assert [notes.answer(TAKEN), notes.answer(TAKEN)] == lost
    watermarks.note_lost()
    assert notes.sent == []


def test_a_log_that_knows_no_watermark_notes_none() -> None:
    notes, watermarks = Notes(), Watermarks()
    unknown, unasked = notes.state("a", 0), notes.state("b", 5)
    unknown.known.has_watermark, unasked.release = False, None
    watermarks.end(unknown)
    watermarks.end(unasked)
    assert notes.sent == []

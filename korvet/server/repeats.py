"""Recognises a request that its client sends again, so that it is not decoded again.

A consumer at the end of its log that has no fetch session sends the same Fetch twice a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.server.response_slot import ResponseSlot

# Where the correlation ID is in every request header: after API key and version.
_CORRELATION_AT: Final = 4
_CORRELATION_BYTES: Final = 4
# The largest request that stays with its connection: a Fetch of some thousand partitions.
_LARGEST_BYTES: Final = 128 * 1024


class Repeat:
    """A request whose repetitions differ in the correlation ID only."""

    __slots__ = ("_head", "_submit", "_tags", "_tail")

    def __init__(self, frame: memoryview, flexible: bool, submit: Callable[[ResponseSlot], None]) -> None:
        self._head = bytes(frame[:_CORRELATION_AT])
        self._tail = bytes(frame[_CORRELATION_AT + _CORRELATION_BYTES :])
        self._tags = b"\x00" if flexible else b""
        self._submit = submit

    @classmethod
    def of(cls, frame: memoryview, flexible: bool, submit: Callable[[ResponseSlot], None]) -> Repeat | None:
        """frame: the request without its length; flexible: the response header's encoding; submit(slot)
        handles the request again. None for a request that is too large to be kept.
        """
        return cls(frame, flexible, submit) if len(frame) <= _LARGEST_BYTES else None

    def take(self, buffer: bytearray, begin: int, end: int, slot: ResponseSlot) -> bool:
        """Handle the frame buffer[begin:end] if it is this request again. Returns whether it is."""
        correlation_id = begin + _CORRELATION_AT
        tail = correlation_id + _CORRELATION_BYTES
        if not buffer.endswith(self._tail, tail, end) or end - tail != len(self._tail):
            return False
        if not buffer.startswith(self._head, begin, correlation_id):
            return False
        slot.header = bytes(buffer[correlation_id:tail]) + self._tags
        self._submit(slot)
        return True

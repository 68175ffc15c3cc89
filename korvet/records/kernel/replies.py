"""Replies of Redis: their end, and the numbers in the reply of an append function."""

from __future__ import annotations

from korvet.records.batch import BatchError, BytesLike
from korvet.records.kernel.integers import MAX_INT64
from korvet.records.kernel.octets import (
    BytesPointer,
    after_line_feed,
    buffer_pointer,
    bytes_pointer,
    equal_bytes,
)
from korvet.records.kernel.resp import ARRAY_TYPE, BULK_TYPE, INTEGER_TYPE, length_line

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

# What the replies of a transaction begin with. korvet_guard replies the first one if it opens the gate.
TRANSACTION_TEXTS: bytes = b"+OK\r\n+QUEUED\r\n"
OK_AT = cython.declare(cython.Py_ssize_t, 0)
OK_SIZE = cython.declare(cython.Py_ssize_t, 5)
QUEUED_AT = cython.declare(cython.Py_ssize_t, 5)
QUEUED_SIZE = cython.declare(cython.Py_ssize_t, 9)
# The integers of an append function's reply, and the index of the one that is 1 for a duplicate.
REPLY_NUMBERS = cython.declare(cython.longlong, 8)
DUPLICATE = cython.declare(cython.Py_ssize_t, 5)


def append_reply(replies: BytesLike, added: int) -> tuple[int, ...] | None:
    """The integers that an append function replied; None if the replies are others.

    If `added` is not 0, `replies` are those of a MULTI with that many commands between guard and seal: OK,
    QUEUED for each command, and the array of EXEC. In the array either korvet_guard replies OK, and
    korvet_seal the integers after the entry IDs, or korvet_guard replies that the batch is a duplicate.
    """
    view: cython.const[cython.uchar][::1] = replies
    end: cython.Py_ssize_t = len(view)
    if end == 0:
        return None
    p: BytesPointer = buffer_pointer(view)
    at: cython.Py_ssize_t = 0
    if added > 0:
        at = _executed(p, end, added)
        if at < 0:
            return None
        if p[at] == ARRAY_TYPE:
            numbers = _reply_numbers(p, at, end, False)
            return numbers if numbers is not None and numbers[DUPLICATE] == 1 else None
        at = _added(p, at, end, added)
        if at < 0:
            return None
    return _reply_numbers(p, at, end, True)


@cython.cfunc
@cython.exceptval(check=False)
def _executed(p: BytesPointer, end: cython.Py_ssize_t, added: cython.longlong) -> cython.Py_ssize_t:
    """The position of the first reply in EXEC's array; -1 unless all commands were queued and executed."""
    texts: BytesPointer = bytes_pointer(TRANSACTION_TEXTS)
    commands: cython.longlong = added + 2
    at: cython.Py_ssize_t = OK_SIZE
    i: cython.longlong
    number: cython.longlong
    if end < OK_SIZE + commands * QUEUED_SIZE or not equal_bytes(p, 0, texts, OK_AT, OK_SIZE):
        return -1
    for i in range(commands):
        if not equal_bytes(p, at, texts, QUEUED_AT, QUEUED_SIZE):
            return -1
        at += QUEUED_SIZE
    number, at = length_line(p, at, end, ARRAY_TYPE)
    return at if at < end and number == commands else -1


@cython.cfunc
@cython.exceptval(check=False)
def _added(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, added: cython.longlong
) -> cython.Py_ssize_t:
    """The position after the guard's OK and `added` entry IDs; -1 if the replies are others."""
    i: cython.longlong
    number: cython.longlong
    if end - at < OK_SIZE or not equal_bytes(p, at, bytes_pointer(TRANSACTION_TEXTS), OK_AT, OK_SIZE):
        return -1
    at += OK_SIZE
    for i in range(added):
        number, at = length_line(p, at, end, BULK_TYPE)
        if at < 0 or number < 0 or number > end - at - 2:
            return -1
        at += number + 2
    return at


@cython.cfunc
def _reply_numbers(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, last: cython.bint
) -> tuple[int, ...] | None:
    """The integers of the array at a position; None for any other reply.

    With `last`, nothing may follow the array.
    """
    i: cython.longlong
    number: cython.longlong
    number, at = length_line(p, at, end, ARRAY_TYPE)
    if at < 0 or number != REPLY_NUMBERS:
        return None
    numbers = []
    for i in range(REPLY_NUMBERS):
        number, at = length_line(p, at, end, INTEGER_TYPE)
        if at < 0:
            return None
        numbers.append(number)
    return tuple(numbers) if at == end or not last else None


@cython.cclass
class ReplyScanner:
    """Finds the end of RESP2 or RESP3 replies in a buffer that grows; nothing is scanned twice."""

    todo: cython.longlong
    done: cython.Py_ssize_t

    def __init__(self) -> None:
        self.todo = 0
        self.done = 0

    def reset(self) -> None:
        """Forget a reply that was scanned in part: the next one is scanned from its first byte."""
        self.todo = 0
        self.done = 0

    def feed(self, buffer: BytesLike, start: int, end: int, replies: int = 1) -> int:
        """The position after the `replies` replies (at least one) that begin at `start`, or -1 while a reply
        is incomplete.

        The same bytes may be at another position in the buffer next time. After the scanner found an end, the
        next call scans new replies. Raises BatchError("corrupt") if the bytes are not RESP; call reset()
        then.
        """
        if not 0 <= start <= end <= len(buffer):
            raise BatchError("corrupt", f"bytes {start} to {end} are not inside a buffer of {len(buffer)}")
        if start == end:
            return -1
        view: cython.const[cython.uchar][::1] = buffer
        p: BytesPointer = buffer_pointer(view)
        stop: cython.Py_ssize_t = end
        at: cython.Py_ssize_t = start + self.done
        found: cython.Py_ssize_t
        more: cython.longlong
        todo: cython.longlong = self.todo if self.todo > 0 else replies
        while todo > 0:
            more, found = _element(p, at, stop)
            if found == -2:
                self.todo = todo
                self.done = at - start
                return -1
            if found < 0 or more > MAX_INT64 - todo:
                raise BatchError("corrupt", f"buffer byte {at}: no RESP reply")
            todo += more - 1
            at = found
        self.todo = 0
        self.done = 0
        return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _element(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """One element without its children: (their number, position after it).

    The position is -2 if the element is cut off, -1 if it is malformed.
    """
    kind: cython.int
    length: cython.longlong
    if at >= end:
        return 0, -2
    kind = p[at]
    if kind == 36 or kind == 61 or kind == 33:  # $ bulk string, = verbatim string, ! bulk error
        length, at = length_line(p, at, end, kind)
        if at < 0:
            return 0, at
        if length < 0:
            return 0, at
        if length > end - at - 2:
            return 0, -2
        return 0, at + length + 2
    # * array, ~ set, > push, % map, | attributes
    if kind == 42 or kind == 126 or kind == 62 or kind == 37 or kind == 124:
        length, at = length_line(p, at, end, kind)
        if at < 0 or length < 0:
            return 0, at
        if kind == 37:
            return 2 * length, at
        if kind == 124:  # the element that the attributes describe follows them
            return 2 * length + 1, at
        return length, at
    # simple string, error, integer, null, double, boolean, big number
    if kind == 43 or kind == 45 or kind == 58 or kind == 95 or kind == 44 or kind == 35 or kind == 40:
        at = after_line_feed(p, at, end)
        return 0, -2 if at < 0 else at
    return 0, -1

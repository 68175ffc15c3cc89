"""Replies of Redis: their end, and those that are integers."""

from __future__ import annotations

from korvet.records.batch import BatchError, BytesLike
from korvet.records.kernel.integers import MAX_INT64
from korvet.records.kernel.octets import BytesPointer, after_line_feed, buffer_pointer
from korvet.records.kernel.resp import ARRAY_TYPE, INTEGER_TYPE, length_line

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]


def integer_array(reply: BytesLike) -> tuple[int, ...] | None:
    """The integers of a reply that is an array of integers; None for any other reply."""
    view: cython.const[cython.uchar][::1] = reply
    end: cython.Py_ssize_t = len(view)
    if end == 0:
        return None
    p: BytesPointer = buffer_pointer(view)
    count: cython.longlong
    number: cython.longlong
    at: cython.Py_ssize_t
    count, at = length_line(p, 0, end, ARRAY_TYPE)
    if at < 0 or count < 0:
        return None
    numbers = []
    while len(numbers) < count:
        number, at = length_line(p, at, end, INTEGER_TYPE)
        if at < 0:
            return None
        numbers.append(number)
    return tuple(numbers) if at == end else None


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

"""Standard error that nobody reads: the process goes on, and says how many lines it has dropped."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from typing import TYPE_CHECKING, Final

import pytest

from korvet import unread
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S: Final = 10
PIPE_BYTES: Final = 4096
LINE: Final = b"y" * 63 + b"\n"

log = logging.getLogger(__name__)


class Pipe:
    """A small pipe."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def read(self) -> bytes:
        return os.read(self.reading, PIPE_BYTES)

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def read_until(pipe: Pipe, end: bytes) -> bytes:
    """All that comes up to `end`."""
    found = b""
    while not found.endswith(end):
        found += pipe.read()
    return found


def test_what_is_printed_last_is_written_at_the_end(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", ends.append)
    with open(pipe.writing, "w", closefd=False) as before:
        monkeypatch.setattr("sys.stderr", before)
        unread.unblock()
        after = sys.stderr
        after.write("half a line")
        (end,) = ends
        end()
        assert sys.stderr is before is not after
    os.set_blocking(pipe.reading, False)
    assert pipe.read() == b"half a line"


def test_a_closed_standard_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr("sys.stderr", closed)
    unread.unblock()
    assert sys.stderr is closed


def test_lines_come_in_their_order(pipe: Pipe) -> None:
    stream = unread.Stream(pipe.writing)
    for number in range(1000):
        stream.write(b"%d\n" % number)
    assert read_until(pipe, b"999\n") == b"".join(b"%d\n" % number for number in range(1000))
    assert stream.drain()


def test_a_long_line_is_written_whole(pipe: Pipe) -> None:
    stream = unread.Stream(pipe.writing)
    stream.write(b"z" * 10 * PIPE_BYTES + b"\n")
    assert read_until(pipe, b"\n") == b"z" * 10 * PIPE_BYTES + b"\n"


def test_dropped_lines_are_counted(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    stream = unread.Stream(pipe.writing, 100 * len(LINE))
    for _ in range(1000):
        stream.write(LINE)
    assert not stream.drain(), "nobody reads"
    found = b""

    def is_said() -> bool:
        nonlocal found
        if not caplog.messages:
            found += pipe.read()
        return bool(caplog.messages)

    until(is_said, WAIT_S, "the dropped lines are counted")
    stream.write(b"again\n")
    found += read_until(pipe, b"again\n")
    assert stream.drain()
    kept = found.count(LINE)
    assert found == LINE * kept + b"again\n"
    assert 100 <= kept < 200
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == f"{1000 - kept} lines of this log are missing: nobody read them in time"


def test_a_reader_that_has_gone_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = unread.Stream(writing, len(LINE))
    for _ in range(10):
        stream.write(LINE)
        assert stream.drain()
    os.close(writing)


def test_a_descriptor_that_another_process_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    stream = unread.Stream(pipe.writing)
    for _ in range(500):
        stream.write(LINE)
    found = b""
    while len(found) < 500 * len(LINE):
        found += pipe.read()
    assert found == LINE * 500

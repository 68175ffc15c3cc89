"""One Java process that runs programs one after the other (tests/clients/java/Host.java)."""

from __future__ import annotations

import struct
import subprocess
import threading
from typing import TYPE_CHECKING, Final

from tests.support.polling import patient

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER: Final = struct.Struct(">i")


class Host:
    """Starts with its first program, and again after one that ended the process or took too long."""

    def __init__(self, java: Sequence[str]) -> None:
        """`java`: the command and its options, with the class path."""
        self._command = [*java, "Host"]
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = threading.Lock()

    def run(
        self, words: Sequence[str], stdin: bytes, timeout_s: float
    ) -> subprocess.CompletedProcess[bytes] | None:
        """Run a class with its arguments to its end. None if another program runs.

        `timeout_s` is for an idle machine, see `patient`. Raises AssertionError if the process ends first.
        """
        if not self._busy.acquire(blocking=False):
            return None
        try:
            process = self._started()
            limit = threading.Timer(patient(timeout_s), process.kill)
            limit.start()
            try:
                return self._answer(process, words, stdin)
            finally:
                limit.cancel()
        finally:
            self._busy.release()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=nothing)
        return self._process

    def _answer(
        self, process: subprocess.Popen[bytes], words: Sequence[str], stdin: bytes
    ) -> subprocess.CompletedProcess[bytes]:
        assert process.stdin is not None
        assert process.stdout is not None
        parts = [*(word.encode() for word in words), stdin]
        process.stdin.write(_NUMBER.pack(len(words)))
        process.stdin.writelines(_NUMBER.pack(len(part)) + part for part in parts)
        process.stdin.flush()
        status, output, errors = self._number(process), self._stream(process), self._stream(process)
        return subprocess.CompletedProcess([*words], status, output, errors)

    def _stream(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        return process.stdout.read(self._number(process))

    def _number(self, process: subprocess.Popen[bytes]) -> int:
        assert process.stdout is not None
        packed = process.stdout.read(_NUMBER.size)
        assert len(packed) == _NUMBER.size, f"{self._command[0]} ended, or did not answer in time"
        (number,) = _NUMBER.unpack(packed)
        return int(number)

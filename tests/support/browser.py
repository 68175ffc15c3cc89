"""A headless Chromium or Chrome, controlled over a pipe by its debugging protocol, without driver or port."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from korvet.spark.report.pictures import BrowserError, browser_command

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 60.0
END_TIMEOUT_S = 10
READ_BYTES = 1 << 16
# File descriptors of the protocol: the browser reads commands from the first and writes answers to the
# second.
_COMMANDS_FD, _ANSWERS_FD = 3, 4
# Lowest file descriptor of our ends of the pipes.
_ABOVE_FD = 10


@contextmanager
def open_page(width: int = 1280, height: int = 900) -> Iterator[Page]:
    """Return an empty page of this size in CSS pixels. Raises BrowserError without a browser."""
    with tempfile.TemporaryDirectory(prefix="korvet-browser-", ignore_cleanup_errors=True) as profile:
        command = [*browser_command(profile), "--remote-debugging-pipe", f"--window-size={width},{height}"]
        commands, answers = _pipe(), _pipe()
        process = _launch([*command, "about:blank"], commands[0], answers[1])
        try:
            yield Page(_Link(commands[1], answers[0]), width, height)
        finally:
            os.close(commands[1])
            os.close(answers[0])
            _end(process)


class Page:
    """One page. All methods raise BrowserError if the browser refuses, or does not answer in time.

    requests: the URLs that the page requested. errors: exceptions and logged errors of its script.
    """

    def __init__(self, link: _Link, width: int, height: int) -> None:
        self._link = link
        self.requests: list[str] = []
        self.errors: list[str] = []
        targets = self._send("Target.getTargets", session=None)["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self._send("Target.attachToTarget", session=None, targetId=page, flatten=True)
        self._session: str | None = attached["sessionId"]
        # The size of the window includes its frame, so set the page's size.
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._send(f"{domain}.enable")

    def show(self, url: str, *, dark: bool = False, media: str = "screen") -> None:
        """Load a page in the light or dark scheme, for `screen` or `print`, and wait until it is loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self._link.events.clear()
        # Loading the current URL again would only navigate within the page.
        self._send("Page.navigate", url="about:blank")
        self._wait("Page.loadEventFired")
        self._link.events.clear()
        self._send("Page.navigate", url=url)
        self._wait("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression or its promise. Raises BrowserError if it throws."""
        answer = self._send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(_thrown(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, for example `Escape` or `a`."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self._send("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))

    def type(self, text: str) -> None:
        """Type into the focused element."""
        self._send("Input.insertText", text=text)

    def _send(self, method: str, session: str | None = "", **parameters: Any) -> dict[str, Any]:
        answer = self._link.call(method, self._session if session == "" else session, parameters)
        self._note()
        return answer

    def _wait(self, name: str) -> None:
        self._link.wait(name)
        self._note()

    def _note(self) -> None:
        for event in self._link.events:
            parameters = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            elif event["method"] == "Runtime.exceptionThrown":
                self.errors.append(_thrown(parameters["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                self.errors.append(parameters["entry"]["text"])
        self._link.events.clear()


class _Link:
    """Commands and answers as JSON, each followed by a zero byte."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self._write_fd, self._read_fd = write_fd, read_fd
        self._buffer = b""
        self._serial = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
        self._serial += 1
        message: dict[str, Any] = {"id": self._serial, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        try:
            os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        except OSError as error:
            raise BrowserError(f"the browser has ended: {error}") from error
        deadline = time.monotonic() + TIMEOUT_S
        while (answer := self._next(deadline)).get("id") != self._serial:
            self._keep(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def wait(self, name: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not any(event["method"] == name for event in self.events):
            self._keep(self._next(deadline))

    def _keep(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self.events.append(message)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BrowserError(f"the browser did not answer within {TIMEOUT_S:g} s")
            more = os.read(self._read_fd, READ_BYTES)
            if not more:
                raise BrowserError("the browser has ended")
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


def _pipe() -> tuple[int, int]:
    """Read end and write end of a pipe, with other descriptors than those of the protocol."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE_FD) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _launch(command: list[str], commands: int, answers: int) -> subprocess.Popen[bytes]:
    def set_descriptors() -> None:
        os.dup2(commands, _COMMANDS_FD)
        os.dup2(answers, _ANSWERS_FD)

    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(_COMMANDS_FD, _ANSWERS_FD),
            preexec_fn=set_descriptors,  # noqa: PLW1509 (two system calls, no locks)
        )
    except OSError as error:
        raise BrowserError(f"{command[0]} does not start: {error}") from error
    finally:
        os.close(commands)
        os.close(answers)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the browser, which exits when its pipe is closed; kill it after the timeout."""
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _thrown(details: dict[str, Any]) -> str:
    return str(details.get("exception", {}).get("description") or details.get("text"))

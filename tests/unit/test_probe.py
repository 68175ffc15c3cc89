"""What `korvet ready` asks, without a broker."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from korvet import probe
from korvet.probe import NOT_READY, READY, WRONG_USAGE, Probed, here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANSWER = "HTTP/1.1 {}\r\nContent-Type: text/plain\r\n\r\n{}"


class Answering:
    """Answers each connection to a socket with the same bytes."""

    def __init__(self, listening: socket.socket) -> None:
        self.answer = b""
        self.asked = b""
        self._listening = listening
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self.asked = connection.recv(1000)
                connection.sendall(self.answer)

    def says(self, status: str, *lines: str) -> None:
        self.answer = ANSWER.format(status, "\n".join(lines)).encode()


@pytest.fixture
def endpoint() -> Iterator[tuple[Answering, int]]:
    """An admin endpoint and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Answering(listening), listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def test_the_answer_of_an_endpoint(
    endpoint: tuple[Answering, int], capsys: pytest.CaptureFixture[str]
) -> None:
    answering, port = endpoint
    answering.says("200 OK", "serving: ok", "lease: ok")
    for place in (f"127.0.0.1:{port}", f"http://localhost:{port}/"):
        assert probe.main(["--admin", place], {}) == READY
    assert answering.asked.startswith(b"GET /readyz HTTP/1.1\r\n")
    answering.says("503 No", "serving: ok", "lease: it has expired", "groups: ok, but slow", "writes: OOM")
    assert probe.main([f"--admin=127.0.0.1:{port}"], {}) == NOT_READY
    answering.answer = b"SSH-2.0\r\n"
    assert probe.main([f"--admin=127.0.0.1:{port}"], {}) == NOT_READY
    assert probe.main(["--admin=unix:/run/admin"], {}) == NOT_READY
    written = capsys.readouterr()
    assert written.out == "ready\n" * 2
    first, second, third = written.err.splitlines()
    assert third.endswith("does not answer: expected HOST:PORT, or the path of a socket")
    assert first == "not ready: lease: it has expired; writes: OOM"
    assert second.startswith(f"not ready: the broker at 127.0.0.1:{port} does not answer: ")


def test_settings_name_the_endpoint(endpoint: tuple[Answering, int], tmp_path: Path) -> None:
    """As options, environment or file; 0.0.0.0 is an address to listen on only."""
    answering, port = endpoint
    answering.says("200 OK", "serving: ok")
    tables, dotted = tmp_path / "tables.toml", tmp_path / "dotted.toml"
    tables.write_text(f'[admin]\nlisten = "0.0.0.0:{port}"\n')
    dotted.write_text(f'"admin.listen" = ":{port}"\n')
    for file in (tables, dotted):
        assert probe.main(["-c", str(file)], {}) == READY
        assert probe.main([], {"KORVET_CONFIG": str(file)}) == READY
    assert probe.main([], {"KORVET_ADMIN_LISTEN": f"127.0.0.1:{port}"}) == READY
    # The environment overrides the file.
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        answering = Answering(listening)
        answering.says("503 No", "writes: OOM")
        assert probe.main(["--config", str(tables)], {"KORVET_ADMIN_SOCKET": str(path)}) == NOT_READY
        listening.shutdown(socket.SHUT_RDWR)


def test_one_of_several_brokers_is_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = here(1, 9092, "one"), here(2, 9093, "two")._replace(process=5)
    parent = here(None, 9100, "three")._replace(process=7)
    child = here(1, 9100, "three")._replace(process=8, parent=7)
    asked: list[str] = []

    def fetch(place: str, tls: bool, timeout_s: float) -> tuple[str, list[str]]:
        asked.append(place)
        return "200", []

    monkeypatch.setattr(probe, "_fetch", fetch)

    def chosen(found: list[Probed], arguments: list[str], **environ: str) -> Probed | int:
        monkeypatch.setattr(probe, "probed", lambda: found)
        status = probe.main(arguments, environ)
        return next(each for each in found if each.path == asked[-1]) if status == READY else status

    assert chosen([one], []) == one
    assert chosen([parent, child], []) == parent
    assert chosen([one, two, parent, child], []) == WRONG_USAGE
    assert "ports 9092, 9093, 9100" in capsys.readouterr().err
    everyone = [one, two, parent, child]
    assert chosen(everyone, ["--listen", "[::]:9093"]) == two
    assert chosen(everyone, [], KORVET_LISTEN="0.0.0.0:9100") == parent
    assert chosen(everyone, [], KORVET_LISTENERS="SSL://:9092,SASL://:9099") == one
    assert chosen(everyone, ["--data-dir", "./two"]) == two
    assert chosen([one], ["--listen", "127.0.0.1:9093"]) == NOT_READY
    assert chosen([], []) == NOT_READY


def test_names_of_other_programs_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        one.bind(f"\0korvet-probe/strange {os.getpid()}")
        two.bind(f"\0korvet-probe/1/2/3/four/{os.getpid()}")
        one.listen()
        two.listen()
        assert probe.main(["--listen", "127.0.0.1:2"], {}) == NOT_READY
    assert capsys.readouterr().err.startswith("not ready: no broker answers here")


@pytest.mark.parametrize(
    "arguments", [["--wait"], ["--wait", "long"], ["--port=1"], ["now"], ["-c", "/nowhere.toml"]]
)
def test_wrong_arguments_are_no_verdict(arguments: list[str]) -> None:
    assert probe.main(arguments, {}) == WRONG_USAGE


def test_it_imports_nothing_heavy() -> None:
    """Probes run every few seconds, for ever."""
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules)); import korvet.cli as c; c.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "ready", "--listen", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("KORVET_")},
    )
    assert done.returncode == NOT_READY, done.stderr
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"asyncio", "click", "msgspec", "redis", "rich", "ssl", "tomllib", "uvloop"}
    assert {name for name in done.stdout.split() if name.startswith("korvet")} == {
        "korvet",
        "korvet.cli",
        "korvet.probe",
    }

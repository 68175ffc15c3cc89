"""The sockets of the admin endpoint: addresses, TLS, the unix socket, limits, and the warning."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import ssl
import stat
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from korvet.admin import server as admin_server
from korvet.admin.client import fetch
from korvet.admin.endpoint import AdminEndpoint, livez
from korvet.admin.handover import ON_STANDARD_INPUT, Handed, Handover
from korvet.admin.server import AdminServer
from korvet.config.errors import ConfigError
from korvet.config.settings import Config
from tests.support.certificates import Authority
from tests.support.pages import Pages
from tests.support.polling import until_async
from tests.support.running import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

DEADLINE_S = 20


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[AdminServer]:
    opened = await AdminServer.open(Config(**settings), AdminEndpoint({"/livez": livez}))
    try:
        yield opened
    finally:
        await opened.close()


def port_of(caplog: pytest.LogCaptureFixture) -> int:
    (address,) = [text.rpartition(":")[2] for text in caplog.messages if "admin endpoint at" in text]
    return int(address)


@pytest.mark.parametrize(
    ("is_local", "settings", "warns"),
    [
        (True, {}, False),
        (False, {}, True),
        (False, {"admin_token": "x"}, False),
        (False, {"admin_basic_user": "x", "admin_basic_password": "y"}, False),
    ],
)
async def test_an_open_endpoint_is_warned_of(
    is_local: bool,
    settings: dict[str, str],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    if not is_local:
        monkeypatch.setattr(admin_server, "_LOOPBACK", ())
    async with serving(admin_listen="localhost:0", **settings):
        pages = Pages(port_of(caplog))
        assert (await asyncio.to_thread(pages.read, "/livez")).status == 200
    assert ("other hosts can read" in caplog.text) == warns


async def test_tls_needs_the_right_authority(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    authority = Authority(tmp_path)
    keystore = authority.issue("admin", "/CN=admin")
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    async with serving(admin_listen="127.0.0.1:0", admin_ssl_keystore_location=str(keystore)) as opened:
        port = port_of(caplog)
        assert (await asyncio.to_thread(Pages(port, trusting).read, "/livez")).text == "ok\n"
        for other in (Pages(port, ssl.create_default_context()), Pages(port)):
            with pytest.raises(OSError):
                await asyncio.to_thread(other.read, "/livez")
        # Nothing stays of clients whose handshake failed.
        while opened.connections:
            await asyncio.sleep(0)
            gc.collect()
    assert "https://" in caplog.text


def test_unusable_files_and_addresses_are_refused(tmp_path: Path) -> None:
    async def opened(**settings: Any) -> None:
        async with serving(**settings):
            pass

    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match=r"admin endpoint: .*missing\.pem"):
        run(opened(admin_listen="127.0.0.1:0", admin_ssl_keystore_location=missing))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: ") as refused:
            run(opened(admin_listen=f"127.0.0.1:{port}"))
    assert refused.value.errno == errno.EADDRINUSE
    for path in (tmp_path / "no" / "socket", tmp_path / ("x" * 200)):
        with pytest.raises(ConfigError, match=f"admin.socket = {path} cannot be used"):
            run(opened(admin_socket=str(path)))


async def test_only_the_own_user_can_open_the_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    for _ in range(2):
        async with serving(admin_socket=str(path), admin_token="x"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            answer = await fetch(path, "/livez", "*/*", DEADLINE_S)
            assert (answer.status, answer.text) == (200, "ok\n")
            assert (await fetch(path, "/x", "*/*", DEADLINE_S)).status == 404
        assert not path.exists()
        # A process that was killed leaves its socket.
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))


async def test_the_unix_socket_of_another_process_stays(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    async with serving(admin_socket=str(path)):
        with pytest.raises(ConfigError, match="another process listens on it"):
            await AdminServer.open(Config(admin_socket=str(path)), AdminEndpoint({}))
        assert (await fetch(path, "/livez", "*/*", DEADLINE_S)).status == 200


def test_a_file_in_place_of_the_unix_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="Address already in use"):
        run(AdminServer.open(Config(admin_socket=str(path)), AdminEndpoint({})))
    assert path.read_text() == "precious"


async def test_connections_are_handed_over_to_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    handover = Handover()
    with pytest.raises(ConnectionRefusedError):
        await fetch(handover, "/livez", "*/*", DEADLINE_S)
    # A process and the one that replaces it.
    for _ in range(2):
        stdin = handover.renew()
        # The process has not come so far yet.
        early = asyncio.create_task(fetch(handover, "/livez", "*/*", DEADLINE_S))
        await asyncio.sleep(0)
        monkeypatch.setattr(admin_server, "_STANDARD_INPUT", stdin.fileno())
        async with serving(admin_socket=ON_STANDARD_INPUT, admin_token="x"):
            stdin.close()
            answer = await early
            assert (answer.status, answer.text) == (200, "ok\n")
            assert (await fetch(handover, "/x", "*/*", DEADLINE_S)).status == 404
        with pytest.raises(OSError):
            await fetch(handover, "/livez", "*/*", DEADLINE_S)
    handover.close()


async def test_no_more_is_expected_of_a_process_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    handover, ends = Handover(), []
    accept = Handed.accept

    def counted(handed: Handed) -> tuple[socket.socket, Any]:
        try:
            return accept(handed)
        except EOFError:
            ends.append(handed)
            raise

    monkeypatch.setattr(Handed, "accept", counted)
    with handover.renew() as stdin:
        monkeypatch.setattr(admin_server, "_STANDARD_INPUT", stdin.fileno())
        async with serving(admin_socket=ON_STANDARD_INPUT):
            await fetch(handover, "/livez", "*/*", DEADLINE_S)
            handover.close()
            await until_async(lambda: ends, DEADLINE_S, "the end is seen")
            for _ in range(10):
                await asyncio.sleep(0)
    assert len(ends) == 1


def test_a_connection_for_which_there_is_no_file_is_an_error_of_the_process() -> None:
    own, theirs = socket.socketpair()
    with own, theirs, Handed(theirs.fileno()) as handed:
        own.send(b"\0")
        with pytest.raises(OSError) as caught:
            handed.accept()
        assert caught.value.errno == errno.EMFILE
        connection, given = socket.socketpair()
        with connection, given:
            socket.send_fds(own, [b"\0"], [given.fileno()])
        with handed.accept()[0] as accepted:
            assert not accepted.get_inheritable()


def test_standard_input_that_is_no_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("wb") as file:
        monkeypatch.setattr(admin_server, "_STANDARD_INPUT", file.fileno())
        with pytest.raises(ConfigError, match="standard input is no socket"):
            run(AdminServer.open(Config(admin_socket=ON_STANDARD_INPUT), AdminEndpoint({})))


async def test_connections_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin_server, "_MOST_PER_HOST", 2)
    path = tmp_path / "admin.sock"
    async with serving(admin_socket=str(path)):
        two = [await asyncio.open_unix_connection(str(path)) for _ in range(2)]
        third = await asyncio.open_unix_connection(str(path))
        assert await third[0].read() == b""
        two[0][1].close()
        await two[0][1].wait_closed()
        while True:
            try:
                assert (await fetch(path, "/livez", "*/*", DEADLINE_S)).status == 200
                break
            except (OSError, ValueError):
                # The end of the first connection has not arrived yet.
                await asyncio.sleep(0)
        for _, writer in (*two, third):
            writer.close()
    assert "refusing the connection" in caplog.text


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("reply", [b"", OK + b"\r\n", OK + b"Content-Length: 5\r\n\r\nabc"])
async def test_malformed_answers_are_errors(reply: bytes, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "s"):
        with pytest.raises(ValueError, match="malformed"):
            await fetch(tmp_path / "s", "/metrics", "*/*", DEADLINE_S)

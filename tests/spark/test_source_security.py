"""TLS, users and passwords of the source, on a Valkey with a TLS proxy and an access list."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from korvet.spark.cli.options import RedisOptions, with_redis
from korvet.spark.export.topics import check_topics
from korvet.spark.source.errors import SourceError
from korvet.spark.source.settings import options_of
from tests.spark.direct import batch, values
from tests.support.certificates import Authority
from tests.support.polling import patient
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.keyspace import Keyspace


# The rights that reading needs, and no others.
READING = ("~*", "-@all", "+@read", "+@connection", "+xinfo", "+cluster|slots")


@dataclass(frozen=True, slots=True)
class Front:
    """The port of the TLS front, and its files."""

    url: str
    folder: Path

    def file(self, name: str) -> str:
        return str(self.folder / name)


def make_certificates(folder: Path) -> None:
    """An authority, certificates of it for a server and a client, and a key with a password."""
    authority = Authority(folder, "ca")
    Authority(folder, "other")
    for name in ("server", "client"):
        authority.issue(name, f"/CN={name}", hosts="DNS:localhost")
    locked = [
        "openssl",
        "ec",
        "-in",
        "client.key",
        "-out",
        "locked.key",
        "-aes128",
        "-passout",
        "pass:open sesame",
    ]
    subprocess.run(locked, cwd=folder, check=True, capture_output=True, timeout=patient(60))


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def carry(secured: socket.socket, path: str) -> None:
    """Proxy one connection to the server's socket, until either side closes it."""
    with secured, socket.socket(socket.AF_UNIX) as behind:
        behind.connect(path)
        back = threading.Thread(target=pump, args=(behind, secured))
        back.start()
        pump(secured, behind)
        back.join()


def serve(listener: socket.socket, context: ssl.SSLContext, path: str) -> None:
    """Connect each connection to the server's socket, until the listener is shut down."""
    carriers = []
    with contextlib.suppress(OSError):
        while True:
            accepted, _ = listener.accept()
            try:
                secured = context.wrap_socket(accepted, server_side=True)
            except OSError:
                accepted.close()
                continue
            carriers.append(threading.Thread(target=carry, args=(secured, path)))
            carriers[-1].start()
    for carrier in carriers:
        carrier.join(10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    made = tmp_path_factory.mktemp("tls")
    make_certificates(made)
    return made


@pytest.fixture
def front(folder: Path, keyspace: Keyspace) -> Iterator[Front]:
    """A TLS front for the keyspace's server that requires client certificates; topic t has one record."""
    keyspace.topic("t")
    keyspace.add("t", 0, "5-0", b"value", b"v")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as listener:
        arguments = (listener, context, keyspace.url.removeprefix("unix://"))
        server = threading.Thread(target=serve, args=arguments, daemon=True)
        server.start()
        yield Front(f"rediss://localhost:{port}", folder)
        listener.shutdown(socket.SHUT_RDWR)
        server.join(10)


def options(front: Front, **more: str) -> dict[str, str]:
    """Read through TLS. Options are named without the prefix redis.ssl, files by name."""
    files = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key", **more}
    given = {
        f"redis.ssl.{name}": front.file(value) if name in {"ca", "cert", "key"} else value
        for name, value in files.items()
        if value
    }
    return {"redis": front.url, "topic": "t", **given}


def test_tls_with_certificates_of_both_sides(keyspace: Keyspace, front: Front) -> None:
    assert values(batch(keyspace, **options(front))) == [b"v"]
    locked = options(front, key="locked.key", keyPassword="open sesame")
    assert values(batch(keyspace, **locked)) == [b"v"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ca": "other.pem"}, "no usable Redis at rediss://localhost.*CERTIFICATE_VERIFY_FAILED"),
        ({"ca": ""}, "no usable Redis at rediss://localhost.*CERTIFICATE_VERIFY_FAILED"),
        ({"cert": "nowhere.pem"}, "redis.ssl.cert: the file .*nowhere.pem doesn't exist or can't be read"),
        ({"cert": "other.pem", "key": "other.key"}, "no usable Redis at rediss://localhost"),
        ({"key": "locked.key", "keyPassword": "wrong hush"}, "no usable Redis at rediss://localhost"),
    ],
)
def test_what_tls_refuses(keyspace: Keyspace, front: Front, more: dict[str, str], message: str) -> None:
    with pytest.raises(SourceError, match=message) as raised:
        batch(keyspace, **options(front, **more))
    assert "hush" not in str(raised.value)


def test_the_host_name_is_checked(keyspace: Keyspace, front: Front) -> None:
    elsewhere = Front(front.url.replace("localhost", "127.0.0.1"), front.folder)
    with pytest.raises(SourceError, match="IP address mismatch"):
        batch(keyspace, **options(elsewhere))
    assert values(batch(keyspace, **options(elsewhere, checkHostname="false"))) == [b"v"]


def test_commands_reach_a_redis_with_all_of_it(keyspace: Keyspace, front: Front, tmp_path: Path) -> None:
    keyspace.client.execute_command("ACL", "SETUSER", "reader", "on", ">hush", *READING)
    (tmp_path / "password").write_text("hush\n")
    found = RedisOptions(
        front.url,
        tmp_path,
        redis_user="reader",
        redis_password_file=str(tmp_path / "password"),
        redis_ca=front.file("ca.pem"),
        redis_cert=front.file("client.pem"),
        redis_key=front.file("client.key"),
    ).address()
    # Exports of topics, then tables and reports.
    for given in (check_topics(found, ["t"]), options_of(found, {"topic": "t"})):
        assert given.pop("keyspace") == "korvet"
        assert values(batch(keyspace, **given)) == [b"v"]
    keyspace.client.execute_command("ACL", "DELUSER", "reader")


def test_users_and_passwords(keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t")
    keyspace.add("t", 0, "5-0", b"value", b"v")
    keyspace.client.execute_command("ACL", "SETUSER", "reader", "on", ">hush", *READING)
    secret = tmp_path / "password"
    secret.write_text("hush\n")
    login = {"redis.user": "reader", "redis.passwordFile": str(secret)}
    assert values(batch(keyspace, topic="t", **login)) == [b"v"]
    for wrong in ({**login, "redis.user": "nobody"}, {"redis.user": "reader", "redis.password": "hush!"}):
        with pytest.raises(SourceError, match="refuses the user or the password") as raised:
            batch(keyspace, topic="t", **wrong)
        assert "hush" not in str(raised.value)
    keyspace.client.execute_command("ACL", "DELUSER", "reader")


def test_a_data_folder_on_the_command_line_precedes_the_variable_of_redis() -> None:
    @click.command()
    @with_redis
    def show(redis: RedisOptions) -> None:
        click.echo(f"{redis.redis_url} {redis.data_dir}")

    runner = CliRunner(env={"KORVET_REDIS": "redis://variable", "KORVET_DATA_DIR": None})
    assert runner.invoke(show, []).output == "redis://variable korvet-data\n"
    assert runner.invoke(show, ["--data-dir", "folder"]).output == "None folder\n"
    both = ["--data-dir", "folder", "--redis", "redis://option"]
    assert runner.invoke(show, both).output == "redis://option folder\n"

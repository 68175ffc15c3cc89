"""TLS contexts from files: what cannot be used is named, and what changes is read again."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from korvet.config.errors import ConfigError
from korvet.config.loading import load
from korvet.config.settings import Config
from korvet.server.listener import client_auth
from korvet.server.tls import ServerTls
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


def config_of(keystore: Path, truststore: Path, **settings: str) -> Config:
    return Config(
        ssl_keystore_location=str(keystore),
        ssl_truststore_location=str(truststore),
        **settings,  # type: ignore[arg-type]
    )


def common_name(tls: ServerTls, authority: Authority, client: Path | None = None) -> str:
    """Of the certificate that a client gets to see, in a handshake without a socket."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client is not None:
        context.load_cert_chain(client)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    mine = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    theirs = tls.context.wrap_bio(to_server, to_client, server_side=True)
    unfinished = [mine, theirs]
    for _ in range(10):
        for side in list(unfinished):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(side)
    assert not unfinished
    certificate = mine.getpeercert()
    assert certificate is not None
    names = dict(pair for names in certificate["subject"] for pair in names)
    return str(names["commonName"])


def test_new_files_are_taken_and_bad_ones_are_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    keystore = tmp_path / "keystore"
    first, second = (authority.issue(name, f"/CN={name}") for name in ("first", "second"))
    keystore.write_bytes(first.read_bytes())
    tls = ServerTls("SSL", config_of(keystore, authority.certificate), "none")
    assert common_name(tls, authority) == "first"
    keystore.write_bytes(b"rubbish")
    tls.reload()
    assert common_name(tls, authority) == "first"
    keystore.unlink()
    tls.reload()
    assert common_name(tls, authority) == "first"
    keystore.write_bytes(second.read_bytes())
    tls.reload()
    assert common_name(tls, authority) == "second"


def test_files_are_taken_once_they_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> ssl.SSLContext:
        raise ConfigError("permission denied")

    authority = Authority(tmp_path)
    keystore = tmp_path / "keystore"
    first, second = (authority.issue(name, f"/CN={name}") for name in ("first", "second"))
    keystore.write_bytes(first.read_bytes())
    tls = ServerTls("SSL", config_of(keystore, authority.certificate), "none")
    keystore.write_bytes(second.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr("korvet.server.tls.context_of", refused)
        tls.reload()
    assert common_name(tls, authority) == "first"
    # The content stays, and so do its size and time.
    before = keystore.stat()
    while keystore.stat().st_ctime_ns == before.st_ctime_ns:
        keystore.chmod(0o600)
    assert keystore.stat().st_mtime_ns == before.st_mtime_ns
    tls.reload()
    assert common_name(tls, authority) == "second"


def test_warnings_of_certificates_follow_the_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = datetime.now(UTC)
    authority = Authority(tmp_path)
    keystore = tmp_path / "keystore"
    expired = authority.issue("expired", "/CN=expired", now - timedelta(days=9), now - timedelta(days=2))
    keystore.write_bytes(expired.read_bytes())
    tls = ServerTls("SSL", config_of(keystore, authority.certificate), "none")
    assert [each.certificate.subject for each in tls.certificates] == ["CN=expired", "CN=authority"]
    assert ["CN=expired in the keystore of listener SSL expired at" in text for text in said(caplog)] == [
        True
    ]
    caplog.clear()
    keystore.write_bytes(authority.issue("short", "/CN=short", end=now + timedelta(days=9)).read_bytes())
    tls.reload()
    assert [" expires at " in text and text.endswith("in 8 days") for text in said(caplog)] == [True]
    caplog.clear()
    keystore.write_bytes(authority.issue("long", "/CN=long").read_bytes())
    tls.reload()
    assert [each.certificate.subject for each in tls.certificates] == ["CN=long", "CN=authority"]
    assert not said(caplog)
    # Files that cannot be used leave all as it was.
    keystore.write_bytes(b"rubbish")
    tls.reload()
    assert [each.certificate.subject for each in tls.certificates] == ["CN=long", "CN=authority"]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the lines about certificates. Threads of other tests may still log."""
    name = "korvet.server.certificates"
    return [record.getMessage() for record in caplog.records if record.name == name]


def test_a_new_authority_is_taken_for_clients(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    truststore = tmp_path / "truststore"
    truststore.write_bytes(authority.certificate.read_bytes())
    tls = ServerTls("SSL", config_of(authority.issue("server", "/CN=server"), truststore), "required")
    old, new = authority.issue("old", "/CN=old"), other.issue("new", "/CN=new")
    assert common_name(tls, authority, old) == "server"
    for stranger in (None, new):
        with pytest.raises(ssl.SSLError):
            common_name(tls, authority, stranger)
    truststore.write_bytes(other.certificate.read_bytes())
    tls.reload()
    assert common_name(tls, authority, new) == "server"
    with pytest.raises(ssl.SSLError):
        common_name(tls, authority, old)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("none", "none")),
        ({"ssl.client.auth": "required"}, ("required", "none")),
        ({"listener.name.in-side.ssl.client.auth": "required"}, ("none", "required")),
        ({"ssl.client.auth": "required", "listener.name.in-side.ssl.client.auth": "requested"},
         ("required", "requested")),
    ],
)  # fmt: skip
def test_a_listener_with_sasl_has_only_its_own_client_auth(
    tmp_path: Path, settings: dict[str, str], expected: tuple[str, str]
) -> None:
    files = {"ssl.keystore.location": str(tmp_path), "ssl.truststore.location": str(tmp_path)}
    listeners = {
        "listeners": "SSL://h:1,IN-SIDE://h:2",
        "listener.security.protocol.map": "IN-SIDE:SASL_SSL",
    }
    config = load(flags={}, pairs=listeners | files | settings)
    specs = config.listener_specs
    assert tuple(client_auth(config.of_listener(spec.name), spec) for spec in specs) == expected


def test_keys_may_have_a_password(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    plain = authority.issue("server", "/CN=server")
    locked = subprocess.run(
        ["openssl", "pkey", "-in", str(plain), "-aes256", "-passout", "pass:secret"],
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout
    keystore = tmp_path / "keystore"
    keystore.write_bytes(locked + plain.with_suffix(".crt").read_bytes())
    tls = ServerTls("SSL", config_of(keystore, authority.certificate, ssl_key_password="secret"), "none")
    assert common_name(tls, authority) == "server"
    for wrong in ({}, {"ssl_key_password": "hidden"}):
        with pytest.raises(
            ConfigError, match=r"ssl\.keystore\.location.*is ssl\.key\.password right"
        ) as caught:
            ServerTls("SSL", config_of(keystore, authority.certificate, **wrong), "none")
        assert "hidden" not in str(caught.value)


def test_a_key_store_without_a_key_is_explained(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    only_certificate = authority.issue("server", "/CN=server").with_suffix(".crt")
    with pytest.raises(ConfigError, match="expected a PEM file of a private key and its certificates"):
        ServerTls("SSL", config_of(only_certificate, authority.certificate), "none")


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("ssl_keystore_location", "/none", "No such file"),
        ("ssl_truststore_location", "/none", "No such file"),
        ("ssl_cipher_suites", "rubbish", "No cipher can be selected"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, setting: str, value: str, reason: str) -> None:
    authority = Authority(tmp_path)
    settings = {
        "ssl_keystore_location": str(authority.issue("server", "/CN=server")),
        "ssl_truststore_location": str(authority.certificate),
        setting: value,
    }
    with pytest.raises(ConfigError, match=f"{setting.replace('_', '.')} = {value} cannot be used: {reason}"):
        ServerTls("SSL", Config(**settings), "none")  # type: ignore[arg-type]

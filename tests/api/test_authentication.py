"""Authentication: every API without a principal and with a wrong password; mechanisms, versions, users."""

from __future__ import annotations

import base64
import re
import struct

import pytest
from kio.schema.errors import ErrorCode

from korvet.security.decoys import Decoys
from korvet.security.scram import ScramClient, ScramMechanism, salt_password
from tests.api.asking import versions
from tests.api.permissions import TABLE
from tests.api.secured import DEADLINE_S, Secured, authenticate, errors_of
from tests.support.polling import until
from tests.support.wire import ConnectionClosed

# APIs that are allowed before authentication.
AT_FIRST = {"ApiVersions", "SaslHandshake"}


def test_no_principal_ends_the_connection(secured: Secured) -> None:
    for one in TABLE:
        client = secured.connect()
        client.send(one.name, one.version, **one.fields)
        if one.name in AT_FIRST:
            assert not errors_of(client.receive(one.name, one.version))
        else:
            assert client.raw.closed_by_server(), one.name


def test_a_wrong_password_ends_the_connection(secured: Secured) -> None:
    for one in TABLE:
        client = secured.connect()
        refused = authenticate(client, "admin", "wrong")
        assert refused.error_code is ErrorCode.sasl_authentication_failed
        assert refused.error_message == "Authentication failed: Invalid username or password"
        with pytest.raises((ConnectionClosed, BrokenPipeError, ConnectionResetError)):
            client(one.name, one.version, **one.fields)


def test_a_failed_log_in_is_a_line_with_all_that_helps(secured: Secured) -> None:
    for mechanism, message, end in (
        (
            "PLAIN",
            b"\0wanda\0wrong",
            r"User:wanda at 127\.0\.0\.1 .*: Invalid username or password; there is no such user",
        ),
        ("GSSAPI", None, r"a client at 127\.0\.0\.1 .*: the mechanism is not enabled"),
    ):
        client = secured.connect()
        client("ApiVersions", 3, client_software_name="tool", client_software_version="1.2.3")
        client("SaslHandshake", 1, mechanism=mechanism)
        if message is not None:
            client("SaslAuthenticate", 2, auth_bytes=message)
        assert client.raw.closed_by_server()
        where = f"{mechanism}, listener SAFE, port {secured.sasl_port}, client software tool 1.2.3"
        line = re.compile(rf" WARNING .*: {end} \({where}\)$", re.MULTILINE)
        until(lambda line=line: line.search(secured.server.tail(10_000)), DEADLINE_S, "the log has the line")
    # That is all.
    assert secured.server.tail(10_000).count("wanda") == 1


def test_another_request_amid_an_authentication_is_refused(secured: Secured) -> None:
    for one in TABLE:
        if one.name == "SaslAuthenticate":
            continue
        client = secured.connect()
        assert not errors_of(client("SaslHandshake", 1, mechanism="PLAIN"))
        client.send(one.name, one.version, **one.fields)
        said = errors_of(client.receive(one.name, one.version))
        assert said <= {ErrorCode.illegal_sasl_state}, one.name
        assert client.raw.closed_by_server(), one.name


def test_raw_tokens_after_the_first_version_of_the_handshake(secured: Secured) -> None:
    client = secured.connect()
    assert not errors_of(client("SaslHandshake", 0, mechanism="PLAIN"))
    assert client.raw.ask(b"\0nobody\0secret") == b""
    assert client.raw.works()
    client = secured.connect()
    assert not errors_of(client("SaslHandshake", 0, mechanism="PLAIN"))
    client.raw.send(b"\0a\0b")
    assert client.raw.closed_by_server()


@versions("SaslAuthenticate")
def test_every_version_authenticates(secured: Secured, version: int) -> None:
    client, scram = secured.connect(), ScramClient(ScramMechanism.SHA_256, "erin", "secret")
    assert not errors_of(client("SaslHandshake", 1, mechanism="SCRAM-SHA-256"))
    # There is no such user, which shows only at the end. Every version has the message.
    answer = client("SaslAuthenticate", version, auth_bytes=scram.first())
    assert answer.error_code is ErrorCode.none
    refused = client("SaslAuthenticate", version, auth_bytes=scram.answer(answer.auth_bytes))
    assert refused.error_code is ErrorCode.sasl_authentication_failed
    assert refused.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism "
        "SCRAM-SHA-256"
    )
    assert client.raw.closed_by_server()
    client = secured.connect()
    assert not errors_of(client("SaslHandshake", 1, mechanism="PLAIN"))
    assert not errors_of(client("SaslAuthenticate", version, auth_bytes=b"\0nobody\0secret"))
    again = client("SaslAuthenticate", version, auth_bytes=b"\0nobody\0secret")
    assert again.error_code is ErrorCode.illegal_sasl_state
    assert client.raw.works()


def test_a_user_that_does_not_exist_keeps_its_salt(secured: Secured) -> None:
    """An unknown user gets the same salt at every broker, like an existing one."""

    def salt_of(user: str) -> bytes:
        client = secured.connect()
        assert not errors_of(client("SaslHandshake", 1, mechanism="SCRAM-SHA-256"))
        answer = client("SaslAuthenticate", 2, auth_bytes=f"n,,n={user},r=abc".encode())
        assert answer.error_code is ErrorCode.none
        return bytes(answer.auth_bytes.split(b",")[1])

    assert salt_of("erin") == salt_of("erin") != salt_of("frank")
    secret = secured.server.redis.hget("{korvet}:cluster", "decoy_secret")
    assert isinstance(secret, bytes)
    expected = base64.b64encode(Decoys(secret).of("erin", ScramMechanism.SHA_256).salt)
    assert salt_of("erin") == b"s=" + expected


def test_a_mechanism_that_is_not_enabled(secured: Secured) -> None:
    client = secured.connect()
    refused = client("SaslHandshake", 1, mechanism="GSSAPI")
    assert refused.error_code is ErrorCode.unsupported_sasl_mechanism
    assert refused.mechanisms == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    assert client.raw.closed_by_server()


def test_frames_before_the_authentication_are_small(secured: Secured) -> None:
    client = secured.connect()
    client.raw.socket.sendall(struct.pack(">i", 600_000))
    assert client.raw.closed_by_server()


def test_users_are_changed_and_described_without_their_secrets(secured: Secured) -> None:
    admin = secured.authenticated("admin")
    salted = salt_password(ScramMechanism.SHA_256, "pw", b"salt", 4096)
    user = {"name": "carol", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": salted}
    assert not errors_of(admin("AlterUserScramCredentials", 0, upsertions=[user]))
    client = secured.connect()
    assert authenticate(client, "carol", "pw").error_code is ErrorCode.none
    (told,) = admin("DescribeUserScramCredentials", 0, users=[{"name": "carol"}]).results
    assert [(info.mechanism, info.iterations) for info in told.credential_infos] == [(1, 4096)]
    assert b"carol" not in b"".join(secured.server.redis.hvals("{korvet}:users"))
    for changed, error in (
        ({"name": ""}, ErrorCode.unacceptable_credential),
        ({"iterations": 4095}, ErrorCode.unacceptable_credential),
        ({"iterations": 16385}, ErrorCode.unacceptable_credential),
        ({"mechanism": 3}, ErrorCode.unsupported_sasl_mechanism),
    ):
        assert errors_of(admin("AlterUserScramCredentials", 0, upsertions=[{**user, **changed}])) == {error}
    twice = admin("AlterUserScramCredentials", 0, upsertions=[user, user])
    assert errors_of(twice) == {ErrorCode.duplicate_resource}
    twice = admin("DescribeUserScramCredentials", 0, users=[{"name": "carol"}, {"name": "carol"}])
    assert errors_of(twice) == {ErrorCode.duplicate_resource}
    unknown = admin("DescribeUserScramCredentials", 0, users=[{"name": "dave"}])
    assert errors_of(unknown) == {ErrorCode.resource_not_found}
    gone = [{"name": "carol", "mechanism": 1}]
    assert not errors_of(admin("AlterUserScramCredentials", 0, deletions=gone))
    refused = authenticate(secured.connect(), "carol", "pw")
    assert refused.error_code is ErrorCode.sasl_authentication_failed


def test_all_users_are_described_where_none_is_named(secured: Secured) -> None:
    admin = secured.authenticated("admin")
    names = ["first", "second"]
    salted = salt_password(ScramMechanism.SHA_256, "pw", b"salt", 4096)
    made = {"iterations": 4096, "salt": b"salt", "salted_password": salted}
    users = [{"name": name, "mechanism": 1, **made} for name in names]
    assert not errors_of(admin("AlterUserScramCredentials", 0, upsertions=users))
    for asked in (None, []):
        told = admin("DescribeUserScramCredentials", 0, users=asked)
        assert not errors_of(told)
        assert set(names) <= {each.user for each in told.results}


def test_each_listener_tells_its_own_address(secured: Secured) -> None:
    for safe in (True, False):
        client = secured.authenticated("admin") if safe else secured.connect(safe=False)
        (broker,) = client("Metadata", 12, topics=[]).brokers
        assert broker.port == (secured.sasl_port if safe else secured.server.port)
        (broker,) = client("DescribeCluster", 2, endpoint_type=1).brokers
        assert broker.port == (secured.sasl_port if safe else secured.server.port)


def test_no_password_is_logged_or_told(secured: Secured) -> None:
    admin = secured.authenticated("admin")
    asked = [{"resource_type": 4, "resource_name": "1", "configuration_keys": ["plain.sasl.jaas.config"]}]
    (described,) = admin("DescribeConfigs", 4, resources=asked).results
    assert [(each.value, each.is_sensitive) for each in described.configs] == [(None, True)]
    assert "secret" not in secured.server.tail(10**7)

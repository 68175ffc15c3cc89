"""One connection's authentication: every state with every request, re-authentication, expiry; PLAIN."""

from __future__ import annotations

import hashlib

import pytest

from korvet.security.credentials import MECHANISMS, Credentials, field_of, parse_field
from korvet.security.errors import IllegalState, InvalidCredentials, SaslFailure, UnsupportedMechanism
from korvet.security.plain import parse_jaas_users
from korvet.security.sasl import SaslSession, State
from korvet.security.scram import ScramClient, ScramMechanism, new_credential

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
UNTOLD = "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"
METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE = 3, 17, 18, 36


def session_of(max_reauth_ms: int = 0) -> SaslSession:
    credentials = Credentials({"alice": "secret", "bob": "hidden"})
    stored = {("carol", ScramMechanism.SHA_512): new_credential(ScramMechanism.SHA_512, "pw")}
    credentials.replace(stored, b"secret")
    return SaslSession(credentials, MECHANISMS, max_reauth_ms)


def plain(
    session: SaslSession, user: str, password: str, now_s: float = 0.0, authorization: str = ""
) -> None:
    session.handshake("PLAIN", 1, now_s)
    assert session.evaluate(f"{authorization}\0{user}\0{password}".encode()) == b""


def test_which_request_is_taken_when() -> None:
    session = session_of()

    def admitted() -> list[int]:
        return [key for key in (METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE) if session.admits(key, 0.0)]

    assert admitted() == [HANDSHAKE, API_VERSIONS]
    session.handshake("PLAIN", 1, 0.0)
    assert admitted() == [AUTHENTICATE]
    session.evaluate(b"\0alice\0secret")
    assert admitted() == [METADATA, HANDSHAKE, API_VERSIONS, AUTHENTICATE]
    assert session.principal == "User:alice"
    failed = session_of()
    with pytest.raises(UnsupportedMechanism):
        failed.handshake("GSSAPI", 1, 0.0)
    session = failed
    assert admitted() == []


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0secret", "Authentication failed: Invalid username or password"),
        (b"\0carol\0no", "Authentication failed: Invalid username or password"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (
            b"bob\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (
            b"alice",
            UNTOLD,
        ),
        (
            b"\xff\0a\0b",
            UNTOLD,
        ),
    ],
)
def test_what_plain_refuses_with_kafkas_words(token: bytes, text: str) -> None:
    session = session_of()
    session.handshake("PLAIN", 1, 0.0)
    with pytest.raises(SaslFailure) as caught:
        session.evaluate(token)
    assert str(caught.value) == text
    assert session.state is State.FAILED
    with pytest.raises(IllegalState):
        session.evaluate(b"\0alice\0secret")


@pytest.mark.parametrize(
    ("mechanism", "user", "reason"),
    [
        ("PLAIN", "alice", "Invalid username or password"),
        ("PLAIN", "carol", "Invalid username or password"),
        ("PLAIN", "nobody", "Invalid username or password; there is no such user"),
        ("SCRAM-SHA-512", "carol", "the proof is wrong"),
        ("SCRAM-SHA-512", "alice", "the proof is wrong; the user has no credential for SCRAM-SHA-512"),
        ("SCRAM-SHA-256", "carol", "the proof is wrong; the user has no credential for SCRAM-SHA-256"),
        ("SCRAM-SHA-512", "nobody", "the proof is wrong; there is no such user"),
    ],
)
def test_the_log_learns_what_the_client_must_not(mechanism: str, user: str, reason: str) -> None:
    session = session_of()
    session.handshake(mechanism, 1, 0.0)
    if mechanism == "PLAIN":
        token = f"\0{user}\0a guess".encode()
    else:
        client = ScramClient(ScramMechanism(mechanism), user, "a guess")
        token = client.answer(session.evaluate(client.first()))
    with pytest.raises(SaslFailure) as caught:
        session.evaluate(token)
    assert caught.value.reason == reason
    assert session.claimed == f"User:{user}"
    assert "such user" not in str(caught.value)
    assert "no credential" not in str(caught.value)


def test_plain_takes_users_with_scram_credentials() -> None:
    session = session_of()
    plain(session, "carol", "pw", authorization="carol")
    assert session.principal == "User:carol"


@pytest.mark.parametrize("user", ["carol", "alice", "nobody"])
def test_scram_hides_whether_there_is_such_a_user(user: str) -> None:
    session = session_of()
    session.handshake("SCRAM-SHA-512", 1, 0.0)
    client = ScramClient(ScramMechanism.SHA_512, user, "a guess")
    final = client.answer(session.evaluate(client.first()))
    assert session.state is State.TOKENS
    with pytest.raises(SaslFailure) as caught:
        session.evaluate(final)
    assert str(caught.value).endswith("due to invalid credentials with SASL mechanism SCRAM-SHA-512")


def test_a_wrong_password_takes_the_same_work_whoever_the_user_is(monkeypatch: pytest.MonkeyPatch) -> None:
    work: list[int] = []

    def count(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        work.append(iterations)
        return bytes(hashlib.new(name).digest_size)

    seen = {}
    for user in ("alice", "carol", "nobody"):
        session = session_of()
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", count)
        session.handshake("PLAIN", 1, 0.0)
        with pytest.raises(SaslFailure):
            session.evaluate(f"\0{user}\0wrong".encode())
        seen[user] = list(work)
        work.clear()
        monkeypatch.undo()
    assert seen["alice"] == seen["carol"] == seen["nobody"] == [4096, 4096]


def test_a_session_ends_unless_it_is_begun_anew() -> None:
    session = session_of(10_000)
    plain(session, "alice", "secret")
    assert session.begin_session(0.0) == 10_000
    assert session.admits(METADATA, 9.9)
    assert not session.admits(METADATA, 10.0)
    assert session.admits(HANDSHAKE, 10.0)
    plain(session, "alice", "secret", 12.0)
    assert session.begin_session(12.0) == 10_000
    assert session.admits(METADATA, 20.0)
    with pytest.raises(IllegalState):
        session.handshake("PLAIN", 1, 12.5)
    assert session.state is State.AUTHENTICATED


def test_nobody_becomes_somebody_else_or_changes_the_mechanism() -> None:
    session = session_of(10_000)
    plain(session, "alice", "secret")
    session.begin_session(0.0)
    session.handshake("PLAIN", 1, 5.0)
    with pytest.raises(SaslFailure, match=r"from User\.alice: User\.bob"):
        session.evaluate(b"\0bob\0hidden")
    assert session.state is State.FAILED
    session = session_of(10_000)
    plain(session, "carol", "pw")
    session.begin_session(0.0)
    session.handshake("SCRAM-SHA-512", 1, 5.0)
    with pytest.raises(SaslFailure, match="re-authentication of mechanism 'PLAIN'"):
        session.evaluate(b"n,,n=carol,r=abc")


def test_without_a_limit_nobody_authenticates_twice() -> None:
    session = session_of()
    plain(session, "alice", "secret")
    assert session.begin_session(0.0) == 0
    with pytest.raises(IllegalState):
        session.handshake("PLAIN", 1, 100.0)
    assert session.admits(METADATA, 1e9)


def test_raw_tokens_follow_the_first_version_of_the_handshake() -> None:
    session = session_of()
    session.handshake("PLAIN", 0, 0.0)
    assert session.takes_raw_token
    session.evaluate(b"\0alice\0secret")
    assert not session.takes_raw_token


def test_jaas_users() -> None:
    text = f'{MODULE} required username="x" password="y" user_alice="a;\\"b" user_bob=plain ;'
    assert parse_jaas_users(text) == {"alice": 'a;"b', "bob": "plain"}
    lines = text.replace(" ", "\n\t", 2)
    assert parse_jaas_users(lines) == parse_jaas_users(text)
    assert parse_jaas_users("") == {}
    for bad in ("x", f"{MODULE} user_a=b;", f'{MODULE} required user_a="b"', f"{MODULE} required user_a;"):
        with pytest.raises(ValueError) as caught:
            parse_jaas_users(bad)
        assert "user_a" not in str(caught.value)


def test_fields_of_users() -> None:
    assert parse_field(field_of("a:b", ScramMechanism.SHA_512)) == ("a:b", ScramMechanism.SHA_512)
    with pytest.raises(ValueError):
        parse_field(b"MD5:alice")


def test_listeners_share_what_is_stored_and_have_their_own_users_of_plain() -> None:
    credentials = Credentials({"alice": "secret"})
    beside = credentials.beside({"alice": "other"})
    stored = {("bob", ScramMechanism.SHA_256): new_credential(ScramMechanism.SHA_256, "pw")}
    credentials.replace(stored, b"secret")
    assert beside.scram == stored

    def admits(users: Credentials, user: str, password: str) -> bool:
        try:
            users.server("PLAIN").evaluate(f"\0{user}\0{password}".encode())
        except (SaslFailure, InvalidCredentials):
            return False
        return True

    for users, password in ((credentials, "secret"), (beside, "other")):
        assert admits(users, "bob", "pw")
        assert [admits(users, "alice", each) for each in ("secret", "other")] == [
            password == "secret",
            password == "other",
        ]

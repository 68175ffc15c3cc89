"""OAUTHBEARER on bytes: the client's first message, refusals (RFC 7628), and how long sessions last."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.security.credentials import OAUTHBEARER, Credentials
from korvet.security.errors import IllegalState, InvalidCredentials, SaslFailure
from korvet.security.oauth.exchange import KeysUnavailable, OAuthBearerServer, parse_first
from korvet.security.oauth.tokens import Identity, RefusedToken
from korvet.security.sasl import SaslSession, State

UNTOLD = "due to invalid credentials with SASL mechanism OAUTHBEARER"


class Tokens:
    """Tokens that are the names of users, with a lifetime: `alice-100`."""

    prepared = 0

    def identity(self, token: str) -> Identity:
        user, _, lifetime_s = token.partition("-")
        if user == "wrong":
            raise RefusedToken("it is wrong", subject="mallory")
        if user == "small":
            raise RefusedToken("it is small", scope="a b")
        return Identity(user, float(lifetime_s))

    async def prepare(self, token: str) -> None:
        self.prepared += 1
        if token.startswith("later"):
            raise KeysUnavailable("not now")


def first(token: str, authorization: str = "", extensions: str = "") -> bytes:
    return f"n,{authorization},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def session_of(max_reauth_ms: int = 0) -> SaslSession:
    session = SaslSession(Credentials().beside({}, Tokens()), (OAUTHBEARER, "PLAIN"), max_reauth_ms)
    session.handshake(OAUTHBEARER, 1, 0.0)
    return session


def test_a_token_authenticates() -> None:
    session = session_of()
    assert session.evaluate(first("alice-100")) == b""
    assert (session.state, session.principal) == (State.AUTHENTICATED, "User:alice")
    assert session.begin_session(1000.0) == 100_000
    assert session.admits(3, 1099.9)
    assert not session.admits(3, 1100.0)


@pytest.mark.parametrize(
    ("max_reauth_ms", "lifetime_ms"), [(0, 100_000), (50_000, 50_000), (200_000, 100_000)]
)
def test_a_session_ends_with_the_token_or_before(max_reauth_ms: int, lifetime_ms: int) -> None:
    session = session_of(max_reauth_ms)
    session.evaluate(first("alice-100"))
    assert session.begin_session(0.0) == lifetime_ms


def test_another_token_makes_the_session_longer_for_the_same_user() -> None:
    session = session_of()
    session.evaluate(first("alice-100"))
    session.begin_session(0.0)
    session.handshake(OAUTHBEARER, 1, 50.0)
    session.evaluate(first("alice-200"))
    assert session.begin_session(51.0) == 200_000
    session.handshake(OAUTHBEARER, 1, 60.0)
    with pytest.raises(SaslFailure, match=r"Cannot change principals .* from User.alice: User.bob"):
        session.evaluate(first("bob-100"))
    assert session.state is State.FAILED


def test_a_refused_token_is_answered_and_fails_after_the_acknowledgement() -> None:
    """RFC 7628, section 3.2.3. The answer says nothing of the reason; the log learns it at once."""
    session = session_of()
    answer = session.evaluate(first("wrong-1"))
    assert json.loads(answer) == {"status": "invalid_token"}
    assert (session.state, session.refusal) == (State.TOKENS, "it is wrong")
    assert session.claimed == "User:mallory"
    with pytest.raises(SaslFailure) as caught:
        session.evaluate(b"\x01")
    assert str(caught.value) == '{"status":"invalid_token"}'
    assert caught.value.reason == "it is wrong"
    assert session.state is State.FAILED
    with pytest.raises(IllegalState):
        session.evaluate(first("alice-100"))


def test_the_scope_that_a_token_lacks_is_told() -> None:
    answer = session_of().evaluate(first("small-1"))
    assert json.loads(answer) == {"status": "insufficient_scope", "scope": "a b"}


@pytest.mark.parametrize("second", [b"", b"\x01\x01", first("alice-100")])
def test_a_refused_client_may_not_try_again(second: bytes) -> None:
    session = session_of()
    session.evaluate(first("wrong-1"))
    with pytest.raises(SaslFailure, match=UNTOLD):
        session.evaluate(second)
    assert session.state is State.FAILED
    assert session.principal == ""


def test_the_authorization_is_the_user_of_the_token() -> None:
    assert session_of().evaluate(first("alice-1", "a=alice")) == b""
    with pytest.raises(SaslFailure, match=r"authorization id \(bob\) that is different .* \(alice\)"):
        session_of().evaluate(first("alice-1", "a=bob"))


def test_long_names_are_not_told_in_full() -> None:
    with pytest.raises(SaslFailure) as caught:
        session_of().evaluate(first("alice-1", "a=" + "b" * 100_000))
    assert max(len(str(caught.value)), len(caught.value.reason)) < 4000


def test_extensions_are_checked_and_ignored() -> None:
    """KIP-342; `host` and `port` are those of RFC 7628."""
    extensions = "host=localhost\x01port=9092\x01traceId=a b\t=c\x01"
    assert session_of().evaluate(first("alice-1", extensions=extensions)) == b""


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\xff",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer alice-1\x01",
        b"n,,\x01auth=Bearer alice-1\x01\x01x",
        b"n,,\x01auth=Bearer alice-1\x01\x01\x01",
        b"y,,\x01auth=Bearer alice-1\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer alice-1\x01\x01",
        b"n,a=,\x01auth=Bearer alice-1\x01\x01",
        b"n,a=al=2Gice,\x01auth=Bearer alice-1\x01\x01",
        b"n,,\x01auth=Basic alice-1\x01\x01",
        b"n,,\x01auth=Bearer  \x01\x01",
        b"n,,\x01auth=Beareralice-1\x01\x01",
        b"n,,\x01auth=Bearer alice 1\x01\x01",
        b"n,,\x01Auth=Bearer alice-1\x01\x01",
        b"n,,\x01auth=Bearer alice-1\x01auth=Bearer bob-1\x01\x01",
        b"n,,\x01auth=Bearer alice-1\x01na1me=x\x01\x01",
        b"n,,\x01auth=Bearer alice-1\x01name=\x01\x01",
        b"n,,\x01auth=Bearer alice-1\x01name\x01\x01",
        b"n,,\x01auth=Bearer alice-1\x01name=\x7f\x01\x01",
        b"n,,\x01auth=Bearer alice-1"
        + b"".join(b"\x01%b=x" % (b"a" * n) for n in range(1, 102))
        + b"\x01\x01",
    ],
)
def test_malformed_messages_are_refused(message: bytes) -> None:
    session = session_of()
    with pytest.raises(SaslFailure, match=UNTOLD):
        session.evaluate(message)
    assert session.state is State.FAILED


@given(st.binary() | st.text(alphabet="n,a=\x01uthBer bc-1.\x00é").map(str.encode))
def test_any_message_is_parsed_or_refused(message: bytes) -> None:
    with contextlib.suppress(InvalidCredentials):
        assert parse_first(message).token


def test_only_a_first_message_makes_the_keys_be_fetched() -> None:
    tokens = Tokens()
    server = OAuthBearerServer(tokens)
    asyncio.run(server.prepare(b"rubbish"))
    assert tokens.prepared == 0
    asyncio.run(server.prepare(first("wrong-1")))
    server.evaluate(first("wrong-1"))
    asyncio.run(server.prepare(first("later-1")))
    assert tokens.prepared == 1
    with pytest.raises(KeysUnavailable, match="not now"):
        asyncio.run(OAuthBearerServer(tokens).prepare(first("later-1")))

"""When an authentication that fails is answered: at a time that does not depend on what was checked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from korvet.api.common import authentication
from korvet.api.common.listener_counts import ListenerCounts
from korvet.api.common.password_checks import PasswordChecks
from korvet.config.settings import Config
from korvet.security.credentials import Credentials
from korvet.security.errors import SaslFailure
from korvet.security.oauth.exchange import KeysUnavailable
from korvet.security.oauth.tokens import Identity, RefusedToken
from korvet.security.sasl import SaslSession

DELAY_MS = 100


class Services:
    def __init__(self) -> None:
        self.config = Config(connection_failed_authentication_delay_ms=DELAY_MS)
        self.password_checks = PasswordChecks()


class Client:
    client_host = "/10.0.0.1"
    listener = "SAFE"

    def __init__(self, sasl: SaslSession) -> None:
        self.session = SimpleNamespace(sasl=sasl)
        self.counts = ListenerCounts()
        self.ended = False
        self.was_cut = False

    def cut(self) -> None:
        self.was_cut = True

    def end(self, reason: str | None = None) -> None:
        assert reason is None, "the failure has its line"
        self.ended = True


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize(
    ("check_ms", "answered_ms"), [(0, 100), (1, 100), (30, 100), (99, 100), (130, 200), (250, 300)]
)
async def test_a_failure_is_answered_whole_delays_after_the_request(
    mechanism: str, check_ms: int, answered_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0

    def evaluate(self: SaslSession, token: bytes) -> bytes:
        nonlocal now_s
        now_s += check_ms / 1000
        raise SaslFailure("no")

    async def sleep(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now_s)
    monkeypatch.setattr(SaslSession, "evaluate", evaluate)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    session = SaslSession(Credentials(), [mechanism])
    session.handshake(mechanism, 1, 0.0)
    client: Any = Client(session)
    services: Any = Services()
    try:
        assert isinstance(await authentication.evaluate(client, services, b""), SaslFailure)
    finally:
        services.password_checks.close()
        monkeypatch.undo()
    assert client.ended
    assert client.counts.failed_authentications == 1
    assert now_s - 1000 == pytest.approx(answered_ms / 1000)


async def test_a_failure_is_one_line_for_each_user_address_and_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failed(user: str, reason: str, host: str = "/10.0.0.1") -> None:
        session = SaslSession(Credentials({user: "secret"}), ["PLAIN"], port=9094)
        session.software = "librdkafka 2.0.2"
        session.handshake("PLAIN", 1, 0.0)
        with pytest.raises(SaslFailure):
            session.evaluate(f"\0{user}\0wrong".encode())
        client: Any = Client(session)
        client.client_host = host
        authentication.note_failure(client, reason)

    for _ in range(3):
        failed("user1", "no")
    failed("user2", "no")
    failed("user1", "no", "/10.0.0.2")
    failed("user1", "never")
    failed("u" * 10_000, "no")
    rest = "(PLAIN, listener SAFE, port 9094, client software librdkafka 2.0.2)"
    assert caplog.messages == [
        f"User:user1 at 10.0.0.1 cannot log in: no {rest}",
        f"User:user2 at 10.0.0.1 cannot log in: no {rest}",
        f"User:user1 at 10.0.0.2 cannot log in: no {rest}",
        f"User:user1 at 10.0.0.1 cannot log in: never {rest}",
        f"User:{'u' * 95} at 10.0.0.1 cannot log in: no {rest}",
    ]
    assert "secret" not in caplog.text
    assert "wrong" not in caplog.text


class Tokens:
    """A check that refuses the token `bad`, and can't check `later`."""

    def identity(self, token: str) -> Identity:
        raise RefusedToken("it is bad", subject="mallory")

    async def prepare(self, token: str) -> None:
        if token == "later":
            raise KeysUnavailable("there are no keys")


async def with_token(token: str, *messages: bytes) -> tuple[Any, list[Any]]:
    """The client and the answers to a token, and to further messages."""
    session = SaslSession(Credentials().beside({}, Tokens()), ["OAUTHBEARER"])
    session.handshake("OAUTHBEARER", 1, 0.0)
    client: Any = Client(session)
    services: Any = Services()
    first = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    try:
        return client, [await authentication.evaluate(client, services, each) for each in (first, *messages)]
    finally:
        services.password_checks.close()


async def test_a_refused_token_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    client, (challenge,) = await with_token("bad")
    assert challenge.token == b'{"status":"invalid_token"}'
    assert (client.counts.failed_authentications, client.ended) == (1, False)
    assert "User:mallory at 10.0.0.1 cannot log in: it is bad (OAUTHBEARER" in caplog.text
    client, (_, failure) = await with_token("bad", b"\x01")
    assert str(failure) == '{"status":"invalid_token"}'
    assert (client.counts.failed_authentications, client.ended) == (1, True)


async def test_a_token_that_cannot_be_checked_is_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Clients try again after a lost connection, and never after a failure."""
    client, _ = await with_token("later")
    assert client.was_cut
    assert client.counts.failed_authentications == 0
    assert "a client at 10.0.0.1 cannot log in: there are no keys (OAUTHBEARER" in caplog.text

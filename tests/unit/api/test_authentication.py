"""When an authentication that fails is answered: at a time that does not depend on what was checked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from korvet.api.common import authentication
from korvet.api.common.listener_counts import ListenerCounts
from korvet.api.common.password_checks import PasswordChecks
from korvet.config.settings import Config
from korvet.security.credentials import Credentials
from korvet.security.errors import SaslFailure
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
        self.sasl = sasl
        self.counts = ListenerCounts()
        self.ended = False

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

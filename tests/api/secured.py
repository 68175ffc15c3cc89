"""A broker with users and an authorizer, and requests of its users."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from korvet.config.checks import STANDARD_AUTHORIZER
from korvet.security.acls import Operation, PatternType, Permission, ResourceType
from tests.api.asking import Client
from tests.api.permissions import TABLE
from tests.support.ports import free_port
from tests.support.servers import KorvetServer
from tests.support.wire import RawConnection, advertised
from tests.unit.protocol.test_registry import errors_in

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


DEADLINE_S = 20.0


class Secured:
    """A broker with an authorizer. The password of every user is `secret`."""

    def __init__(self) -> None:
        users = ["admin", "nobody", "other", "lister", "fetcher", "creator", "writer", "guesser"]
        users += [f"u{number}" for number in range(len(TABLE))]
        listed = " ".join(f'user_{user}="secret"' for user in users)
        self.sasl_port = free_port()
        self.server = KorvetServer()
        listeners = f"OPEN://127.0.0.1:{self.server.port},SAFE://127.0.0.1:{self.sasl_port}"
        for pair in (
            f"listeners={listeners}",
            "listener.security.protocol.map=OPEN:PLAINTEXT,SAFE:SASL_PLAINTEXT",
            f"plain.sasl.jaas.config={MODULE} required {listed};",
            "connection.failed.authentication.delay.ms=0",
            f"authorizer.class.name={STANDARD_AUTHORIZER}",
            "super.users=User:admin",
        ):
            self.server.options += ["--set", pair]
        self._served: dict[int, tuple[int, int]] = {}
        self._open: list[RawConnection] = []

    def start(self) -> Secured:
        self.server.start()
        self._served = advertised("127.0.0.1", self.sasl_port)
        return self

    def connect(self, *, safe: bool = True) -> Client:
        client = Client("127.0.0.1", self.sasl_port if safe else self.server.port, self._served)
        self._open.append(client.raw)
        return client

    def authenticated(self, user: str) -> Client:
        client = self.connect()
        assert authenticate(client, user, "secret").error_code is ErrorCode.none
        return client

    def close(self) -> None:
        for each in self._open:
            each.socket.close()
        self._open.clear()


def authenticate(client: Client, user: str, password: str) -> Any:
    shaken = client("SaslHandshake", 1, mechanism="PLAIN")
    assert shaken.error_code is ErrorCode.none
    return client("SaslAuthenticate", 2, auth_bytes=f"\0{user}\0{password}".encode())


def binding(
    user: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    *,
    deny: bool = False,
    prefixed: bool = False,
) -> dict[str, Any]:
    return {
        "resource_type": int(kind),
        "resource_name": name,
        "resource_pattern_type": int(PatternType.PREFIXED if prefixed else PatternType.LITERAL),
        "principal": f"User:{user}",
        "host": "*",
        "operation": int(operation),
        "permission_type": int(Permission.DENY if deny else Permission.ALLOW),
    }


def errors_of(answer: Any) -> frozenset[ErrorCode]:
    return frozenset(errors_in(answer) - {ErrorCode.none})

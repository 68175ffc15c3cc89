"""Raw requests by schema names: any API in any version, with full control of every field."""

from __future__ import annotations

import dataclasses
import datetime
import struct
import types
import typing
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest

from korvet import api
from korvet.protocol import registry
from korvet.protocol.schemas import request_class
from tests.support.wire import ConnectionClosed, RawConnection, advertised, decode_response
from tests.unit.protocol.instances import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

api.load_all()
KEYS = {entry.name: entry.key for entry in registry.registered()}


def versions(name: str, since: int = 0, until: int = 99) -> Any:
    """Parametrizes a test over the supported versions of an API."""
    entry = registry.find(KEYS[name])
    assert entry is not None
    served = range(max(entry.min_version, since), min(entry.max_version, until) + 1)
    return pytest.mark.parametrize("version", [*served], ids=lambda version: f"v{version}")


def newest(name: str) -> int:
    """Returns the newest supported version of an API."""
    entry = registry.find(KEYS[name])
    assert entry is not None
    return entry.max_version


class Client:
    """One connection. `client(name, version, field=value …)` sends a request and returns the decoded
    response.

    Structures are dictionaries, arrays are lists, durations are in ms. Fields that the version doesn't have
    are ignored, so one test serves all versions. Missing fields are null, zero or empty.
    """

    def __init__(
        self, host: str, port: int, served: dict[int, tuple[int, int]], timeout_s: float = 20
    ) -> None:
        self.raw = RawConnection(host, port, timeout_s)
        self._served = served
        self._correlation_id = 0

    def __call__(self, name: str, version: int, /, **fields: Any) -> Any:
        self.send(name, version, **fields)
        return self.receive(name, version)

    def send(self, name: str, version: int, /, **fields: Any) -> None:
        """Send a request without waiting for the response."""
        api_key = KEYS[name]
        low, high = self._served.get(api_key, (0, -1))
        if not low <= version <= high:
            pytest.skip(f"the server has {name} v{low} to v{high}")
        self._correlation_id += 1
        self.raw.send(frame(name, version, self._correlation_id, **fields))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.raw.socket.close()

    def receive(self, name: str, version: int) -> Any:
        """Returns the next response, which must be of this kind."""
        response = decode_response(KEYS[name], version, self.raw.receive())
        assert response.correlation_id == self._correlation_id
        assert response.left_bytes == 0
        return response.message


def frame(name: str, version: int, correlation_id: int, /, **fields: Any) -> bytes:
    """Returns the bytes of a request with its header, without its length."""
    schema = request_class(KEYS[name], version)
    head = struct.pack(">hhih", KEYS[name], version, correlation_id, 3) + b"api"
    return head + (b"\x00" if schema.__flexible__ else b"") + encode(_structure(schema, fields))


def _structure(cls: type, fields: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}
    values = {name: _value(hints[name], value) for name, value in fields.items() if name in known}
    for field in dataclasses.fields(cls):
        if field.name not in values and field.default is dataclasses.MISSING:
            values[field.name] = _nothing(hints[field.name])
    return cls(**values)


def _nothing(hint: Any) -> Any:
    """Returns the value of a field that a test doesn't set: null, zero or empty."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return None
    if typing.get_origin(hint) is tuple:
        return ()
    if issubclass(hint, str):
        return ""
    return datetime.timedelta(0) if issubclass(hint, datetime.timedelta) else hint(0)


def _value(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if value is None:
            return None
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(typing.get_args(hint)[0], each) for each in value)
    if dataclasses.is_dataclass(hint):
        return _structure(typing.cast("type", hint), value)
    if isinstance(hint, type) and issubclass(hint, datetime.timedelta):
        return datetime.timedelta(milliseconds=value)
    return value


@contextmanager
def authenticating(port: int, mechanism: str, auth_bytes: bytes) -> Iterator[tuple[Client, Any]]:
    """A connection that has sent the first message of a mechanism and now is silent, and the answer."""
    client = Client("127.0.0.1", port, advertised("127.0.0.1", port))
    with client.raw:
        client("SaslHandshake", 1, mechanism=mechanism)
        yield client, client("SaslAuthenticate", 2, auth_bytes=auth_bytes)


def is_closed(client: Client) -> bool:
    """Whether the broker ends the connection instead of answering. Repeated requests take a shorter path."""
    try:
        client("Heartbeat", 4, group_id="shared", member_id="m", generation_id=1)
    except (ConnectionClosed, OSError):
        return True
    return False


def connect(broker: Any, timeout_s: float = 20) -> Client:
    """Returns a client of the server under test."""
    return Client(broker.host, broker.port, advertised(broker.host, broker.port), timeout_s)

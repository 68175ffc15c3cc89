"""Instances of Kafka's messages made up from a seed, and their bytes."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import types
import typing
import uuid
from typing import TYPE_CHECKING, Any

from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Interval

from korvet import api
from korvet.protocol import registry
from korvet.protocol.schemas import request_class, response_class

if TYPE_CHECKING:
    import random

api.load_all()

VERSIONS = [
    (entry.key, version)
    for entry in registry.registered()
    for version in range(entry.min_version, entry.max_version + 1)
]
NAMES = {entry.key: entry.name for entry in registry.registered()}


def version_id(case: tuple[int, int]) -> str:
    """How a (key, version) is named in test ids."""
    return f"{NAMES[case[0]]}-v{case[1]}"


def random_request(rng: random.Random, api_key: int, api_version: int) -> Any:
    """A request of that version, every field drawn anew."""
    return make(rng, request_class(api_key, api_version))


def as_handled(api_key: int, api_version: int, request: Any) -> Any:
    """A request as the handler of its API gets it."""
    entry = registry.find(api_key)
    if entry is None or entry.decode is None:
        return request
    return entry.decode(memoryview(encode(request)), 0, api_version)


def make(rng: random.Random, cls: type) -> Any:
    """An instance of a kio dataclass."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        # What clients don't send: tagged fields are for replicas.
        if "tag" not in field.metadata:
            values[field.name] = _value(rng, hints[field.name])
    return cls(**values)


def _value(rng: random.Random, hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if rng.random() < 0.3:
            return None
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        return tuple(_value(rng, typing.get_args(hint)[0]) for _ in range(rng.randrange(4)))
    if dataclasses.is_dataclass(hint):
        return make(rng, typing.cast("type", hint))
    return _scalar(rng, hint)


def _scalar(rng: random.Random, hint: Any) -> Any:
    if issubclass(hint, enum.Enum):
        return rng.choice(list(hint))
    if issubclass(hint, bool):
        return rng.random() < 0.5
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta(milliseconds=rng.choice((-1, 0, 1, 2**31 - 1, rng.randrange(100_000))))
    if issubclass(hint, datetime.datetime):
        return datetime.datetime.fromtimestamp(rng.randrange(2**31), datetime.UTC)
    if issubclass(hint, uuid.UUID):
        return uuid.UUID(int=rng.getrandbits(128))
    if issubclass(hint, str):
        return "".join(rng.choices("aZ09._-ä😀\0 ", k=rng.choice((0, 1, 8, 130))))
    if issubclass(hint, bytes):
        return rng.randbytes(rng.choice((0, 1, 8, 200)))
    if issubclass(hint, float):
        return rng.random()
    low, high = (hint.__low__, hint.__high__) if issubclass(hint, Interval) else (0, 100)
    return rng.choice((low, high, max(low, -1), 0, 1, rng.randint(low, high)))


def encode(message: Any) -> bytes:
    """The message's bytes, by kio."""
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def decode_response(api_key: int, api_version: int, body: bytes) -> Any:
    """A response's body by Kafka's schema; nothing may be left behind it."""
    message, size = entity_reader(response_class(api_key, api_version))(memoryview(body), 0)
    assert size == len(body)
    return message

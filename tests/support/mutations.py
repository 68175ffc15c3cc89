"""Request frames that no client sends: those of real clients and of the schemas, damaged."""

from __future__ import annotations

import os
import random
import struct
from typing import TYPE_CHECKING, NamedTuple

from korvet.protocol.schemas import request_class
from tests.clients.test_wire_replay import CLIENTS, captured
from tests.unit.protocol.instances import VERSIONS, encode, random_request
from tests.unit.protocol.nulls import bodies_with_null, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST_SEED = int(os.environ.get("KORVET_TEST_SEED", "20261124"))
# APIs whose requests wait for a time of their own: Fetch, JoinGroup, SyncGroup.
WAITING = frozenset((1, 11, 14))
# A valid alteration of quotas throttles every client, as it should.
LEFT_OUT = frozenset((49,))
# Replacements of a length: null, zero, and more than there is, in both encodings.
LENGTHS = (b"\x00", b"\x01", b"\xff\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07")
RANDOM_OF_EACH = 4
BEHIND_THE_HEADER = 8
_REPEATED = 0.3


class Sent(NamedTuple):
    """One or two frames of an API that are sent together."""

    api_key: int
    frame: bytes
    before: bytes | None = None
    """A whole request: a full Fetch like the one before it is taken another way."""

    @property
    def frames(self) -> list[bytes]:
        """Requests in their order."""
        return [self.frame] if self.before is None else [self.before, self.frame]


def originals(seed: int) -> list[Sent]:
    """Whole requests of every API and version."""
    found = [
        Sent(request.api_key, request.frame)
        for client in CLIENTS
        for request in captured(client)
        if (request.api_key, request.api_version) in VERSIONS
    ]
    source = random.Random(seed)
    for case in VERSIONS:
        flexible = bool(request_class(*case).__flexible__)
        head = struct.pack(">hhih", *case, 1, 4) + b"fuzz" + b"\x00" * flexible
        bodies = [encode(random_request(source, *case)) for _ in range(RANDOM_OF_EACH)]
        found += [Sent(case[0], head + body) for body in bodies]
        found += [Sent(case[0], frame_of(*case, 1, body)) for _, body in bodies_with_null(*case)]
    return [sent for sent in found if sent.api_key not in LEFT_OUT]


def mutated(seed: int, count: int) -> Iterator[Sent]:
    """`count` damaged frames, and some whole ones, so that the damaged ones meet state."""
    source = random.Random(seed)
    pool = originals(seed)
    by_api: dict[int, list[bytes]] = {}
    for sent in pool:
        by_api.setdefault(sent.api_key, []).append(sent.frame)
    apis = [*by_api]
    for _ in range(count):
        # Every API as often as the others; half of the clients' requests belong to a few APIs.
        api_key = source.choice(apis)
        whole = source.choice(by_api[api_key])
        frame = bytearray(whole)
        for _ in range(source.choice((0, 1, 1, 1, 2, 4))):
            source.choice(MUTATIONS)(source, frame, by_api[api_key])
        yield Sent(api_key, bytes(frame), whole if source.random() < _REPEATED else None)


def _position(source: random.Random, frame: bytearray) -> int:
    return source.randrange(BEHIND_THE_HEADER, max(len(frame), BEHIND_THE_HEADER + 1))


def _cut(source: random.Random, frame: bytearray, _: list[bytes]) -> None:
    del frame[_position(source, frame) :]


def _flip(source: random.Random, frame: bytearray, _: list[bytes]) -> None:
    position = _position(source, frame)
    if position < len(frame):
        frame[position] ^= 1 << source.randrange(8)


def _overwrite(source: random.Random, frame: bytearray, _: list[bytes]) -> None:
    position = _position(source, frame)
    for at in range(position, min(position + source.choice((1, 2, 4, 8)), len(frame))):
        frame[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))


def _length(source: random.Random, frame: bytearray, _: list[bytes]) -> None:
    position = _position(source, frame)
    length = source.choice(LENGTHS)
    frame[position : position + source.choice((0, len(length)))] = length


def _version(source: random.Random, frame: bytearray, alike: list[bytes]) -> None:
    frame[2:4] = source.choice(alike)[2:4]


def _splice(source: random.Random, frame: bytearray, alike: list[bytes]) -> None:
    other = source.choice(alike)
    frame[_position(source, frame) :] = other[source.randrange(len(other)) :]


def _repeat(source: random.Random, frame: bytearray, _: list[bytes]) -> None:
    position = _position(source, frame)
    part = frame[position : position + source.randrange(1, 40)]
    frame[position:position] = part * source.choice((1, 1, 2, 30))


def _append(source: random.Random, frame: bytearray, _: list[bytes]) -> None:
    frame += source.randbytes(source.randrange(1, 20))


MUTATIONS: tuple[Callable[[random.Random, bytearray, list[bytes]], None], ...] = (
    _cut,
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _length,
    _length,
    _version,
    _splice,
    _repeat,
    _append,
)

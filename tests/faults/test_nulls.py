"""Null for each array and string of every API and version: an answer or a closed connection, never
silence.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from tests.support.wire import ConnectionClosed, RawConnection
from tests.unit.protocol.instances import NAMES, VERSIONS
from tests.unit.protocol.nulls import bodies_with_null, frame_of

if TYPE_CHECKING:
    from tests.support.servers import Broker, KorvetServer

pytestmark = pytest.mark.faults

DEADLINE_S = 20
PRODUCE = 0
CASES = {name: [case for case in VERSIONS if NAMES[case[0]] == name] for name in NAMES.values()}


def outcome(connection: RawConnection, frame: bytes) -> bytes | None:
    """The answer; None if the connection was closed instead. Raises TimeoutError after the deadline."""
    try:
        return connection.ask(frame)
    except ConnectionClosed:
        return None


@pytest.mark.parametrize("name", CASES)
def test_null_is_answered_or_ends_the_connection(broker: Broker, korvet: KorvetServer, name: str) -> None:
    before = len(korvet.log.read_text())
    connection = RawConnection(broker.host, broker.port, DEADLINE_S)
    for case in CASES[name]:
        for place, body in bodies_with_null(*case):
            answer = outcome(connection, frame_of(*case, 7, body))
            if answer is not None:
                assert place.nullable, f"{name} v{case[1]}: {place.path} was null"
                assert answer[:4] == struct.pack(">i", 7)
                assert connection.works(), f"{name} v{case[1]}: {place.path} was null"
                continue
            # Without acks (0 in this body) there is no answer: a refusal closes the connection.
            assert not place.nullable or case[0] == PRODUCE, f"{name} v{case[1]}: {place.path} was null"
            connection.socket.close()
            connection = RawConnection(broker.host, broker.port, DEADLINE_S)
    connection.socket.close()
    assert "Traceback" not in korvet.log.read_text()[before:]


def test_null_topics_leave_nothing_behind_that_holds_others_back(
    broker: Broker, korvet: KorvetServer
) -> None:
    """The bytes of a refused request must not count any longer: a few of them would stop every producer."""
    null_topics = struct.pack(">h", -1) + struct.pack(">hi", 1, 1000) + struct.pack(">i", -1)
    for _ in range(5):
        with RawConnection(broker.host, broker.port, DEADLINE_S) as attacker:
            assert outcome(attacker, frame_of(PRODUCE, 7, 1, null_topics + bytes(2_000_000))) is None
    with RawConnection(broker.host, broker.port, DEADLINE_S) as producer:
        unknown = struct.pack(">h", -1) + struct.pack(">hi", 1, 1000) + struct.pack(">i", 0)
        assert outcome(producer, frame_of(PRODUCE, 7, 2, unknown)) is not None

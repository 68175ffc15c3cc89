"""A connection byte by byte, without sockets: frames, order, buffers, waiting and closing."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from typing import TYPE_CHECKING

import pytest

from korvet.protocol.headers import LASTING_FRAME_BYTES
from korvet.protocol.primitives import MalformedRequest
from korvet.security.credentials import Credentials
from korvet.security.sasl import SaslSession
from korvet.server.listener_access import ListenerAccess
from tests.support.running import run
from tests.unit.server.transports import MAX_REQUEST_BYTES, Held, Wire, framed, request, unframed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from korvet.server.connection import Connection

PRODUCE, FETCH, METADATA, OFFSET_COMMIT = 0, 1, 3, 8
SMALL_BUFFER = 4096
KEPT_BUFFER = 256 * 1024


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def wire(held: Held) -> Wire:
    return Wire(held)


def buffer_size(wire: Wire) -> int:
    return len(wire.connection._buffer)


def test_a_frame_byte_by_byte(wire: Wire, held: Held) -> None:
    frame = framed(request(1, size=40))
    for index in range(len(frame) - 1):
        wire.feed(frame[index : index + 1])
        assert held.frames == []
    wire.feed(frame[-1:])
    assert held.frames == [request(1, size=40)]


def cuts(stream: bytes, seed: int, sizes: Sequence[int]) -> Iterator[bytes]:
    """A stream in pieces of these sizes."""
    rng = random.Random(seed)
    position = 0
    while position < len(stream):
        size = rng.choice(sizes)
        yield stream[position : position + size]
        position += size


def test_any_cut_of_many_frames_gives_the_same_frames() -> None:
    rng = random.Random(1)
    sent = [request(number, PRODUCE, rng.choice((8, 9, 100, 5000, 70_000))) for number in range(60)]
    stream = b"".join(map(framed, sent))
    for seed in range(10):
        held = Held()
        wire = Wire(held)
        for piece in cuts(stream, seed, (1, 3, 100, 4096, 100_000)):
            assert wire.feed(piece) == len(piece)
        assert held.frames == sent


class Keeping(Held):
    """Keeps views of the frames that last."""

    def __call__(self, connection: Connection, frame: memoryview, slot: object) -> None:
        self.frames.append(frame if len(frame) > LASTING_FRAME_BYTES else bytes(frame))  # type: ignore[arg-type]
        self.answers.append(slot)  # type: ignore[arg-type]


@pytest.mark.parametrize("before", [0, 1], ids=["first", "later"])
def test_a_frame_behind_a_large_one_does_not_overwrite_it(before: int) -> None:
    held = Keeping()
    wire = Wire(held)
    # The buffer grows by some KB more than the large frame needs, which the one behind it begins in.
    sizes = [12] * before + [LASTING_FRAME_BYTES + 1, 50_000]
    sent = [request(number, PRODUCE, size) for number, size in enumerate(sizes)]
    for frame in sent[:before]:
        wire.feed(framed(frame))
    wire.feed(b"".join(map(framed, sent[before:])))
    assert held.frames == sent


def test_large_frames_stay_as_they_are_for_those_who_have_views_of_them() -> None:
    rng = random.Random(2)
    sizes = (8, 5000, 70_000, LASTING_FRAME_BYTES, LASTING_FRAME_BYTES + 1, 300_000, 900_000)
    sent = [request(number, PRODUCE, rng.choice(sizes)) for number in range(60)]
    stream = b"".join(map(framed, sent))
    for seed in range(5):
        held = Keeping()
        wire = Wire(held)
        for piece in cuts(stream, seed, (100, 4096, 100_000, 1_000_000)):
            held.is_blocked = rng.random() < 0.3
            fed = wire.feed(piece)
            held.is_blocked = False
            while held.resumes:
                held.resumes.pop()()
            assert wire.feed(piece[fed:]) == len(piece) - fed
        assert held.frames == sent
        assert any(isinstance(frame, memoryview) for frame in held.frames)


def test_one_who_has_sent_a_large_frame_gets_room_for_the_next_at_once(wire: Wire, held: Held) -> None:
    frame = framed(request(1, PRODUCE, 900_000))
    wire.feed(frame[:5000])
    assert buffer_size(wire) <= 4 * SMALL_BUFFER
    wire.feed(frame[5000:])
    held.answers[0]([b"a"])
    assert buffer_size(wire) == SMALL_BUFFER
    wire.feed(frame[:5000])
    assert buffer_size(wire) == len(frame)


def test_many_frames_in_one_read_are_taken_one_after_the_other(wire: Wire, held: Held) -> None:
    sent = [request(number) for number in range(5)]
    wire.feed(b"".join(map(framed, sent)))
    for number in range(5):
        assert held.frames == sent[: number + 1]
        held.answers[number]([b"%d" % number])
    assert unframed(wire.transport.written) == b"01234"


@pytest.mark.parametrize("api", [PRODUCE, OFFSET_COMMIT])
def test_requests_overtake_the_answer_but_answers_keep_their_order(wire: Wire, held: Held, api: int) -> None:
    wire.feed(b"".join(framed(request(number, api)) for number in range(4)))
    assert len(held.frames) == 4
    held.answers[2]([b"c"])
    held.answers[1]([b"b"])
    assert wire.transport.written == b""
    held.answers[0]([b"a", b"A"])
    held.end_turn()
    assert unframed(wire.transport.written) == b"aAbc"
    held.answers[3]([b"d"])
    assert unframed(wire.transport.written) == b"aAbcd"


def test_answers_of_one_turn_go_out_in_one_write(wire: Wire, held: Held) -> None:
    wire.feed(b"".join(framed(request(number, PRODUCE)) for number in range(5)))
    for number in range(3):
        held.answers[number]([b"%d" % number])
    assert wire.transport.writes == 0
    held.end_turn()
    assert unframed(wire.transport.written) == b"012"
    assert wire.transport.writes == 1
    held.answers[3]([b"3"])
    held.answers[4]([b"4"])
    assert unframed(wire.transport.written) == b"01234", "nothing more is to come: it need not wait"
    assert wire.transport.writes == 2
    held.end_turn()
    assert wire.transport.writes == 2


def test_answers_that_wait_for_others_are_sent_before_the_connection_closes(wire: Wire, held: Held) -> None:
    wire.feed(b"".join(framed(request(number, PRODUCE)) for number in range(2)))
    held.answers[0]([b"a"])
    wire.connection.shut_down()
    assert unframed(wire.transport.written) == b"a"
    held.end_turn()
    assert unframed(wire.transport.written) == b"a"


def test_commits_in_flight_are_limited(wire: Wire, held: Held) -> None:
    wire.feed(b"".join(framed(request(number, OFFSET_COMMIT)) for number in range(200)))
    most = len(held.frames)
    assert 1 < most < 200
    held.answers[1]([b"x"])
    assert len(held.frames) == most, "the answer before it is not there"
    held.answers[0]([b"x"])
    assert len(held.frames) == most + 2
    for answer in held.answers[2:most]:
        answer([b"x"])
    for number in range(most, 200):
        held.answers[number]([b"x"])
    held.end_turn()
    assert unframed(wire.transport.written) == b"x" * 200


@pytest.mark.parametrize(("api", "other"), [(PRODUCE, METADATA), (OFFSET_COMMIT, PRODUCE)])
def test_nothing_of_another_kind_overtakes(wire: Wire, held: Held, api: int, other: int) -> None:
    keys = (api, other, api, api, FETCH)
    wire.feed(b"".join(framed(request(number, key)) for number, key in enumerate(keys)))
    assert len(held.frames) == 1, "the second waits for the one before it"
    held.answers[0]([b"0"])
    assert len(held.frames) == 2, "the third waits for the one before it"
    held.answers[1]([b"1"])
    assert len(held.frames) == 4
    held.answers[3]([b"3"])
    assert len(held.frames) == 4, "Fetch waits for both"
    held.answers[2]([b"2"])
    assert len(held.frames) == 5
    held.answers[4]([b"4"])
    assert unframed(wire.transport.written) == b"01234"


def test_a_request_without_an_answer_keeps_its_place(wire: Wire, held: Held) -> None:
    wire.feed(b"".join(framed(request(number, PRODUCE)) for number in range(3)))
    held.answers[1](None)
    held.answers[2]([b"2"])
    assert wire.transport.written == b""
    held.answers[0]([b"0"])
    assert unframed(wire.transport.written) == b"02"


def test_an_answer_given_at_once_lets_the_next_request_in() -> None:
    class AtOnce(Held):
        def __call__(self, connection, frame, slot):  # type: ignore[no-untyped-def]
            slot([bytes(frame[4:8])])

    wire = Wire(AtOnce())
    wire.feed(b"".join(framed(request(number)) for number in range(2000)))
    assert unframed(wire.transport.written) == b"".join(struct.pack(">i", number) for number in range(2000))


def test_a_huge_frame_grows_the_buffer_and_gives_it_back(wire: Wire, held: Held) -> None:
    assert buffer_size(wire) == SMALL_BUFFER
    frame = request(1, size=900_000)
    wire.feed(framed(frame), most=10_000)
    assert held.frames == [frame]
    assert buffer_size(wire) == SMALL_BUFFER


def test_the_buffer_grows_with_what_arrives_and_not_with_what_is_promised(wire: Wire) -> None:
    wire.feed(struct.pack(">i", MAX_REQUEST_BYTES) + b"\x00" * 100)
    assert buffer_size(wire) == SMALL_BUFFER
    wire.feed(b"\x00" * 100_000)
    assert buffer_size(wire) < 300_000
    wire.feed(b"\x00" * (MAX_REQUEST_BYTES - 100_200))
    assert buffer_size(wire) <= MAX_REQUEST_BYTES + 4


def test_a_middling_buffer_stays(wire: Wire, held: Held) -> None:
    wire.feed(framed(request(1, size=100_000)))
    held.answers[0]([b"a"])
    assert SMALL_BUFFER < buffer_size(wire) <= KEPT_BUFFER


def test_a_frame_is_not_written_over_by_the_next(wire: Wire, held: Held) -> None:
    """The dispatch gets a view that it can't write to; what it keeps it has to copy."""
    views = []
    held.__class__ = type("Keeps", (Held,), {"__call__": lambda _, __, frame, ___: views.append(frame)})
    wire.feed(framed(request(1)))
    assert views[0].readonly


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1, 7, MAX_REQUEST_BYTES + 1, 2**31 - 1])
def test_a_length_that_cannot_be_ends_the_connection(
    wire: Wire, held: Held, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        wire.feed(struct.pack(">i", size))
        wire.feed(b"more" * 100)
    assert wire.transport.closed
    assert held.frames == []
    assert len(caplog.records) == 1
    assert f"{size} bytes" in caplog.text
    assert "/10.1.2.3" in caplog.text


@pytest.mark.parametrize("size", [8, MAX_REQUEST_BYTES])
def test_the_smallest_and_the_largest_frame(wire: Wire, held: Held, size: int) -> None:
    wire.feed(framed(request(1, size=size)))
    assert [len(frame) for frame in held.frames] == [size]
    assert not wire.transport.closed


def test_a_bad_length_behind_good_requests(wire: Wire, held: Held, caplog: pytest.LogCaptureFixture) -> None:
    wire.feed(framed(request(1)) + b"\xff\xff\xff\xff")
    held.answers[0]([b"a"])
    assert unframed(wire.transport.written) == b"a", "what was asked before is answered"
    assert wire.transport.closed
    assert len(caplog.records) == 1


def test_a_malformed_request_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    class Refuses(Held):
        def __call__(self, connection, frame, slot):  # type: ignore[no-untyped-def]
            if frame[4] == 9:
                raise MalformedRequest("no such request")
            super().__call__(connection, frame, slot)

    dispatch = Refuses()
    wire, other = Wire(dispatch), Wire(dispatch)
    wire.feed(framed(request(0x09000000)) + framed(request(2)))
    assert wire.transport.closed
    assert [record.getMessage() for record in caplog.records] == [
        "closing the connection of /10.1.2.3: no such request"
    ]
    other.feed(framed(request(3)))
    dispatch.answers[0]([b"fine"])
    assert unframed(other.transport.written) == b"fine"
    assert dispatch.frames == [request(3)]


def test_a_slow_reader_is_asked_nothing_more(wire: Wire, held: Held) -> None:
    wire.connection.pause_writing()
    wire.feed(framed(request(1)))
    assert not held.frames
    wire.connection.resume_writing()
    assert held.frames == [request(1)]


def test_a_buffer_full_of_waiting_requests_pauses_reading(wire: Wire, held: Held) -> None:
    stream = b"".join(framed(request(number, size=100)) for number in range(500))
    taken = wire.feed(stream)
    paused = not wire.transport.reading
    assert paused
    assert len(stream) > taken >= SMALL_BUFFER
    assert buffer_size(wire) == SMALL_BUFFER
    answered = 0
    while answered < 500:
        held.answers[answered]([b"."])
        answered += 1
        taken += wire.feed(stream[taken:])
    assert taken == len(stream)
    assert wire.transport.reading
    assert held.frames == [request(number, size=100) for number in range(500)]
    assert buffer_size(wire) <= 2 * SMALL_BUFFER


def test_a_large_frame_behind_a_waiting_request(wire: Wire, held: Held) -> None:
    frame = request(2, size=500_000)
    stream = framed(request(1)) + framed(frame) + framed(request(3))
    taken = wire.feed(stream)
    held.answers[0]([b"1"])
    taken += wire.feed(stream[taken:])
    assert held.frames[1] == frame
    held.answers[1]([b"2"])
    taken += wire.feed(stream[taken:])
    assert taken == len(stream)
    assert held.frames[2] == request(3)


def test_large_requests_of_many_clients_leave_turns_to_small_ones(held: Held) -> None:
    large, small = [Wire(held) for _ in range(3)], Wire(held)
    held.takes_s = 0.1
    for number, wire in enumerate(large):
        wire.feed(framed(request(number, PRODUCE, size=10_000)))
    small.feed(framed(request(9)))
    assert [frame[:8] for frame in held.frames] == [request(0, PRODUCE)[:8], request(9)[:8]]
    for taken in (2, 3):
        held.end_turn()
        assert len(held.frames) == 1 + taken
    held.end_turn()
    assert held.frames[2:] == [request(number, PRODUCE, size=10_000) for number in (1, 2)]


def test_large_requests_that_take_little_time_need_no_turns(held: Held) -> None:
    held.takes_s = 0.0001
    for number in range(10):
        Wire(held).feed(framed(request(number, PRODUCE, size=10_000)))
    assert len(held.frames) == 10


def test_a_client_goes_while_its_large_request_waits_for_a_turn(held: Held) -> None:
    held.takes_s = 0.1
    wires = [Wire(held) for _ in range(3)]
    for number, wire in enumerate(wires):
        wire.feed(framed(request(number, PRODUCE, size=10_000)) + framed(request(10 + number)))
    wires[1].lose()
    held.end_turn()
    assert held.frames[1:] == [request(2, PRODUCE, size=10_000)]
    held.answers[1]([b""])
    assert held.frames[2:] == [request(12)]


def test_backpressure_holds_produce_requests_back(wire: Wire, held: Held) -> None:
    held.is_blocked = True
    wire.feed(framed(request(1, PRODUCE)) + framed(request(2, METADATA)))
    assert held.frames == []
    wire.feed(framed(request(3, PRODUCE)))
    assert len(held.resumes) == 1, "it asks once"
    held.is_blocked = False
    held.resumes[0]()
    assert held.frames == [request(1, PRODUCE)]


def test_backpressure_does_not_hold_back_other_requests(wire: Wire, held: Held) -> None:
    held.is_blocked = True
    wire.feed(framed(request(1, FETCH)))
    assert held.frames == [request(1, FETCH)]


def test_backpressure_ends_after_the_client_has_gone(wire: Wire, held: Held) -> None:
    held.is_blocked = True
    wire.feed(framed(request(1, PRODUCE)))
    wire.lose()
    held.is_blocked = False
    held.resumes[0]()
    assert held.frames == []


def test_those_who_wait_are_told_when_the_client_goes(wire: Wire, held: Held) -> None:
    told = []

    def first() -> None:
        told.append("first")
        wire.connection.forget(second)

    def second() -> None:
        told.append("second")

    def forgotten() -> None:
        told.append("forgotten")

    for callback in (first, forgotten):
        wire.connection.on_disconnect(callback)
    wire.connection.forget(forgotten)
    wire.connection.forget(second)
    assert [*wire.connections] == [wire.connection]
    wire.lose()
    assert told == ["first"]
    assert wire.connection.closed
    assert len(wire.connections) == 0


def test_those_who_begin_to_wait_when_the_client_has_gone_are_told_soon(wire: Wire, held: Held) -> None:
    told: list[str] = []
    wire.lose()
    wire.connection.on_disconnect(lambda: told.append("gone"))
    assert told == []
    held.end_turn()
    assert told == ["gone"]


def test_answers_for_a_client_that_has_gone_are_dropped(wire: Wire, held: Held) -> None:
    wire.feed(framed(request(1, PRODUCE)) + framed(request(2, PRODUCE)) + framed(request(3)))
    wire.lose()
    held.answers[1]([b"b"])
    held.answers[0]([b"a"])
    assert wire.transport.written == b""
    assert len(held.frames) == 2, "nothing more is taken from the buffer"


def test_shutting_down_takes_no_more_requests(wire: Wire, held: Held) -> None:
    wire.feed(framed(request(1)) + framed(request(2)))
    wire.connection.shut_down()
    assert wire.transport.closed
    held.answers[0]([b"a"])
    assert unframed(wire.transport.written) == b"a"
    assert len(held.frames) == 1


def test_an_end_waits_for_the_answers_under_way(wire: Wire, held: Held, caplog) -> None:
    wire.feed(framed(request(1, PRODUCE)) + framed(request(2, PRODUCE)) + framed(request(3)))
    with caplog.at_level(logging.WARNING):
        wire.connection.end("it failed")
    assert "it failed" in caplog.text
    held.answers[0]([b"a"])
    held.end_turn()
    assert not wire.transport.closed
    held.answers[1]([b"b"])
    assert wire.transport.closed
    assert unframed(wire.transport.written) == b"ab"
    assert len(held.frames) == 2, "nothing more is taken from the buffer"


def test_bytes_that_arrive_while_a_connection_ends_are_dropped(wire: Wire, held: Held) -> None:
    """At the end of the broker, producers send on while their last requests are answered."""
    wire.feed(framed(request(1)))
    wire.connection.closing = True
    wire.feed(framed(request(2, size=900_000)) * 3)
    assert buffer_size(wire) <= 2 * SMALL_BUFFER
    held.answers[0]([b"a"])
    assert unframed(wire.transport.written) == b"a"
    assert len(held.frames) == 1


def test_bytes_dropped_while_a_connection_ends_spare_the_frames_before() -> None:
    held = Keeping()
    wire = Wire(held)
    frame = request(1, size=LASTING_FRAME_BYTES + 1)
    wire.feed(framed(frame) + b"x")
    wire.connection.closing = True
    wire.feed(b"x" * 1_000_000)
    assert held.frames == [frame]


def test_an_end_without_requests_is_at_once(wire: Wire) -> None:
    wire.connection.end("it failed")
    assert wire.transport.closed
    assert not wire.transport.aborted


class _Asking(ListenerAccess):
    """Asks everybody for an authentication."""

    def new_session(self) -> SaslSession:
        return SaslSession(Credentials({"alice": "secret"}), ["PLAIN"])


class _Refusing(ListenerAccess):
    """Knows nobody."""

    def principal_of(self, transport: asyncio.BaseTransport) -> str:
        raise ValueError("nobody we know")


def test_sizes_of_frames_before_and_after_the_authentication(held: Held) -> None:
    wire = Wire(held, listener_access=_Asking())
    wire.connection.session.expect_tokens(raw=True)
    wire.feed(framed(b"ab"))
    assert held.frames == [b"ab"]
    held.answers[0]([b""])
    wire.connection.session.expect_tokens(raw=False)
    wire.connection.session.become("User:alice")
    large = request(1, size=MAX_REQUEST_BYTES - 10)
    wire.feed(framed(large))
    assert held.frames[1] == large
    held.answers[1]([b""])
    wire.feed(framed(b"ab"))
    assert wire.transport.closed
    early = Wire(held, listener_access=_Asking())
    early.feed(struct.pack(">i", MAX_REQUEST_BYTES - 10))
    assert early.transport.closed


@pytest.mark.parametrize("api", [PRODUCE, OFFSET_COMMIT])
def test_tokens_do_not_overlap_whatever_their_first_bytes(held: Held, api: int) -> None:
    """A token without a request around it has no API: its bytes may read as any."""
    wire = Wire(held, listener_access=_Asking())
    wire.connection.session.expect_tokens(raw=True)
    assert wire.connection.session.sasl is not None
    wire.connection.session.sasl.handshake("PLAIN", 0, 0.0)
    held.is_blocked = True
    tokens = [request(number, api) for number in (1, 2)]
    wire.feed(framed(tokens[0]) + framed(tokens[1]))
    assert held.frames == tokens[:1], "the second one waits for the first, and none waits for produced bytes"
    held.answers[0]([b""])
    assert held.frames == tokens


def test_a_client_that_is_nobody_is_cut(held: Held, caplog) -> None:
    async def connect() -> Wire:
        return Wire(held, listener_access=_Refusing())

    with caplog.at_level(logging.WARNING):
        wire = run(connect())
    assert wire.transport.aborted
    assert "nobody we know" in caplog.text


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is the test's."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    async def pass_s(self, passed_s: float) -> None:
        self.now_s += passed_s
        for _ in range(3):
            await asyncio.sleep(0)


def test_a_muted_client_is_not_listened_to(wire: Wire, held: Held) -> None:
    async def mute(loop: Clock) -> None:
        wire.feed(framed(request(1)))
        wire.connection.mute(60)
        wire.connection.mute(1)
        # What it asked before is answered.
        held.answers[0]([b"a"])
        assert unframed(wire.transport.written) == b"a"
        wire.feed(framed(request(2)))
        wire.connection.pause_writing()
        wire.connection.resume_writing()
        await loop.pass_s(59)
        assert len(held.frames) == 1, "the longer time counts"
        wire.connection.mute(120)
        await loop.pass_s(119)
        assert len(held.frames) == 1, "a longer time counts instead"
        await loop.pass_s(2)
        assert held.frames == [request(1), request(2)]
        wire.connection.mute(60)
        wire.feed(framed(request(3)))
        wire.connection.connection_lost(None)
        await loop.pass_s(61)
        assert len(held.frames) == 2

    with asyncio.Runner(loop_factory=Clock) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Clock)
        runner.run(mute(loop))

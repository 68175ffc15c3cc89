"""The calls of korvet_append as they are sent, byte by byte."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.log.append_calls import AppendCalls
from korvet.log.appends import Group, RecordsAppend
from korvet.log.layouts import BatchLayout, RecordLayout
from korvet.log.values import ProducerSequence
from korvet.offsets.record_batch import HEADER_BYTES, MAX_PRODUCER_SEQUENCE
from korvet.records import kernel
from korvet.records.batch import AppendForm
from korvet.redis.calls import parse_reply
from korvet.redis.functions import named
from korvet.redis.keys import Keyspace
from tests.support.received import ReceivedBatch
from tests.unit.records.forms import BASE_MS, Record, batch_bytes, records_bytes, whole_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = [b"stream", b"index", b"meta", b"latest"]
CALL_NUMBERS = struct.Struct(">7d")
BATCH_NUMBERS = struct.Struct(">6d")
EPOCH = 4
SESSION, SERIAL, UNANSWERED = 3, 9, 7


class Calls:
    """The calls of a log without Redis."""

    def __init__(
        self, layout: type[RecordLayout | BatchLayout] = RecordLayout, *, is_full: bool = False, **topic: Any
    ) -> None:
        described = {"name": "orders", "keeps_latest": False, "log_append_time": False, **topic}
        state: Any = SimpleNamespace(
            topic=SimpleNamespace(**described),
            partition=0,
            keys=tuple(KEYS),
            bias=1,
            lead_cap_ms=10_000,
            with_timestamps=True,
            leader_epoch=5,
            links=SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: BASE_MS)),
            known=SimpleNamespace(loaded=True, ends=SimpleNamespace(log_end=77)),
        )
        self.layout = layout(state)
        self._calls = AppendCalls(state, Keyspace("k"), self.layout, lambda _: is_full)

    def encoded(
        self, data: bytes, plain: bytes | None = None, producer: ProducerSequence | None = None
    ) -> RecordsAppend:
        """An append of a producer's batch, for the server module if the layout uses that."""
        received = ReceivedBatch(data, kernel.parse_batch(data, 0), plain)
        form = self.layout.encode(received, packed=True)
        return RecordsAppend(form, producer, EPOCH, lambda _: None, received)

    def payload(self, *appends: RecordsAppend) -> Any:
        """The call of a group, as it is given to the connection."""
        return self._calls.append(Group(SERIAL, list(appends)), SESSION, UNANSWERED)

    def command(self, *appends: RecordsAppend) -> list[bytes]:
        """The strings of that call."""
        payload = self.payload(*appends)
        whole = payload if isinstance(payload, bytes) else b"".join(payload)
        strings: list[bytes] = parse_reply(memoryview(whole))
        return strings


def records(count: int, value: bytes = b"v") -> list[Record]:
    return [Record(b"k", value, BASE_MS + number) for number in range(count)]


def call_numbers(string: bytes) -> tuple[int, ...]:
    return tuple(map(int, CALL_NUMBERS.unpack(string)))


def batches(strings: Sequence[bytes]) -> list[tuple[tuple[int, ...], bytes, list[bytes]]]:
    """The numbers of each batch, the ID of its producer, and its other arguments."""
    found, at = [], 0
    while at < len(strings):
        head, producer = strings[at][: BATCH_NUMBERS.size], strings[at][BATCH_NUMBERS.size :]
        numbers = tuple(map(int, BATCH_NUMBERS.unpack(head)))
        found.append((numbers, producer, list(strings[at + 1 : at + 1 + numbers[1]])))
        at += 1 + numbers[1]
    return found


def own_records(producer: ProducerSequence | None = None) -> RecordsAppend:
    arguments = kernel.encode_append_records([(b"k", b"v", BASE_MS)])
    return RecordsAppend(arguments, producer, EPOCH, lambda _: None)


def test_records_are_arguments_of_the_function() -> None:
    calls = Calls()
    name, function, key_count, *rest = calls.command(calls.encoded(whole_batch(records(1))))
    assert (name, function, key_count) == (b"FCALL", named("korvet_append").encode(), b"3")
    assert rest[:3] == KEYS[:3]
    numbers, epoch, *strings = rest[3:]
    assert call_numbers(numbers) == (1, 10_000, 1, SESSION, SERIAL, UNANSWERED, -1)
    assert epoch == b"%d" % EPOCH
    arguments = [bytes((0, 3, 3)), b"key", b"k", b"value", b"v", b"ts", b"%d" % BASE_MS]
    assert batches(strings) == [((AppendForm.RECORDS, 7, 1, -1, -1, 0), b"", arguments)]


def test_a_whole_batch_is_one_argument_and_says_what_readers_have_seen() -> None:
    calls = Calls(BatchLayout)
    data = whole_batch(records(300), max_ms=BASE_MS + 299)
    numbers, _, *strings = calls.command(calls.encoded(data))[6:]
    assert call_numbers(numbers) == (1, 10_000, 0, SESSION, SERIAL, UNANSWERED, 77)
    arguments = [b"%d" % (BASE_MS + 299), kernel.place_batch(data, 0, 5)]
    assert batches(strings) == [((AppendForm.WHOLE, 2, 300, -1, -1, 0), b"", arguments)]


def test_batches_for_the_module_are_one_argument_each() -> None:
    """A group may hold others, too: batches with few records are not worth the module."""
    calls = Calls()
    large, small, other = (whole_batch(records(count)) for count in (400, 1, 4))
    appends = [calls.encoded(data) for data in (large, small, other)]
    name, function, key_count, *rest = calls.command(*appends)
    assert (name, function, key_count) == (b"FCALL", named("korvet_append").encode(), b"3")
    assert rest[:3] == KEYS[:3]
    numbers, epoch, *strings = rest[3:]
    assert call_numbers(numbers) == (1, 10_000, 1, SESSION, SERIAL, UNANSWERED, -1)
    assert epoch == b"%d" % EPOCH
    first, second, third = batches(strings)
    assert first == ((AppendForm.PACKED, 1, 400, -1, -1, 0), b"", [large])
    assert (second[0], len(second[2])) == ((AppendForm.RECORDS, 7, 1, -1, -1, 0), 7)
    assert third == ((AppendForm.PACKED, 1, 4, -1, -1, 0), b"", [other])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("keeps_latest", "log_append_time", "count", "form"),
    [
        (False, False, 4, AppendForm.PACKED),
        (False, False, 3, AppendForm.RECORDS),
        (True, False, 4, AppendForm.RECORDS),
        (False, True, 4, AppendForm.RECORDS),
    ],
)
def test_what_the_module_cannot_do_is_sent_as_records(
    packed: bool, keeps_latest: bool, log_append_time: bool, count: int, form: AppendForm
) -> None:
    layout = Calls(keeps_latest=keeps_latest, log_append_time=log_append_time).layout
    data = whole_batch(records(count))
    encoded = layout.encode(ReceivedBatch(data, kernel.parse_batch(data, 0), None), packed=packed)
    assert encoded.form == (form if packed else AppendForm.RECORDS)
    assert encoded.entry_count == encoded.record_count == count


@given(
    st.lists(st.binary(max_size=300), min_size=4, max_size=8),
    st.sampled_from([0, 16]),
    st.integers(0, (1 << 63) - 1),
)
def test_a_compressed_batch_is_sent_as_it_would_be_uncompressed(
    values: list[bytes], attributes: int, producer: int
) -> None:
    """But for its CRC, and for its base offset, which both lack."""
    sent = [Record(None, value, BASE_MS) for value in values]
    parts: dict[str, Any] = {"producer": (producer, 3, 9)} if attributes else {}
    plain = whole_batch(sent, attributes=attributes, **parts)
    codec = attributes | 3
    compressed = batch_bytes(b"lz4", len(sent), base_ms=BASE_MS, attributes=codec, **parts)
    calls = Calls()
    one, other = calls.encoded(plain), calls.encoded(compressed, plain[HEADER_BYTES:])
    packed, packed_too = (calls.command(append)[-1] for append in (one, other))
    assert packed == plain
    assert packed_too[:17] + packed[17:21] + packed_too[21:] == packed
    assert records_bytes(sent) == packed_too[HEADER_BYTES:]
    same = ("record_count", "max_timestamp_ms", "min_timestamp_ms", "payload_bytes", "keyless_count")
    for name in (*same, "largest_bytes", "entry_count"):
        assert getattr(one.form, name) == getattr(other.form, name)


def test_large_batches_are_not_copied() -> None:
    calls = Calls()
    data = whole_batch(records(4, b"v" * 2_000))
    assert any(piece is data for piece in calls.payload(calls.encoded(data)))
    assert isinstance(calls.payload(calls.encoded(whole_batch(records(4)))), bytes)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("sequence", [0, 41, MAX_PRODUCER_SEQUENCE])
def test_each_batch_has_the_sequence_of_its_producer(sequence: int, transactional: bool) -> None:
    calls = Calls()
    first = ProducerSequence((1 << 63) - 1, 32_767, sequence, transactional=transactional)
    second = ProducerSequence(8, 0, 0)
    data = whole_batch(records(1))
    appends = [calls.encoded(data, producer=producer) for producer in (first, None, second)]
    found = [(numbers[3:], producer) for numbers, producer, _ in batches(calls.command(*appends)[8:])]
    assert found == [
        ((32_767, sequence, int(transactional)), b"%d" % ((1 << 63) - 1)),
        ((-1, -1, 0), b""),
        ((0, 0, 0), b"8"),
    ]


def test_topics_that_coordinators_load_note_newest_entries_and_those_of_transactions() -> None:
    calls = Calls(keeps_latest=True)
    assert calls.command(own_records())[2:7] == [b"4", *KEYS]
    open_one = own_records(ProducerSequence(12, 0, -1, transactional=True))
    pending = Keyspace("k").pending("orders", 0, 12)
    assert calls.command(open_one)[2:8] == [b"5", *KEYS, pending]
    other = Calls()
    transactional = ProducerSequence(12, 0, 0, transactional=True)
    assert other.command(other.encoded(whole_batch(records(1)), producer=transactional))[2:6] == [
        b"3",
        *KEYS[:3],
    ]


def test_only_a_brokers_own_records_are_appended_at_maxmemory() -> None:
    calls = Calls(is_full=True)
    own, sent = own_records(), calls.encoded(whole_batch(records(1)))
    assert calls.command(own)[1] == named("korvet_append_within").encode()
    assert own.within
    assert calls.command(sent)[1] == named("korvet_append").encode()
    assert not sent.within
    # What once was refused stays on this way, even when Redis has memory again.
    assert Calls().command(own)[1] == named("korvet_append_within").encode()
    assert Calls().command(own_records())[1] == named("korvet_append").encode()

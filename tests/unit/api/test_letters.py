"""Dead letters as record batches, read by another library."""

from __future__ import annotations

from typing import Any

from aiokafka.record import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from korvet.api.sharing.letters import Letter, batches_of, letter_of
from korvet.groups.share.messages import SharePartition
from korvet.records.kernel import check_records, parse_batch
from korvet.records.native import native_rule
from korvet.redis_groups.share import DeadRecord

PLACE = SharePartition("g", b"\1" * 16, "orders", 3)
NATIVE = native_rule("json")
MOST_BYTES, NOW_MS = 2_000, 1_700_000_000_000

contents = st.one_of(st.none(), st.binary(max_size=1_200))


def fields_of(key: bytes | None, value: bytes | None) -> list[bytes]:
    pairs = ((b"key", key), (b"value", value), (b"ts", b"5"), (b"header.own", b"not copied"))
    return [text for name, content in pairs if content is not None for text in (name, content)]


def read(data: bytes) -> list[Any]:
    header = parse_batch(data, 0)
    assert header.size == len(data)
    check_records(data, 0, header, None)
    records = MemoryRecords(data)
    batch = records.next_batch()
    assert batch.validate_crc()
    return list(batch)


@given(pairs=st.lists(st.tuples(contents, contents), min_size=1, max_size=20))
def test_batches_have_all_letters_in_order(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    dead = [
        DeadRecord(b"%d-0" % number, number, number % 7, bool(number % 2), fields_of(*pair))
        for number, pair in enumerate(pairs)
    ]
    letters = [letter_of(PLACE, one, NATIVE, MOST_BYTES) for one in dead]
    found: list[DeadRecord] = []
    for records, data in batches_of(letters, NOW_MS, MOST_BYTES):
        assert len(data) <= MOST_BYTES
        for one, record in zip(records, read(data), strict=True):
            pair = pairs[one.offset]
            size = sum(len(content or b"") for content in pair)
            if size < MOST_BYTES - 400:
                assert (record.key, record.value) == pair
            else:
                assert (record.key, record.value) in (pair, (None, None))
            assert record.timestamp == NOW_MS
            assert dict(record.headers) == {
                "__dlq.errors.topic": b"orders",
                "__dlq.errors.partition": b"3",
                "__dlq.errors.offset": b"%d" % one.offset,
                "__dlq.errors.group": b"g",
                "__dlq.errors.delivery.count": b"%d" % one.deliveries,
                "__dlq.errors.message": b"Offset rejected by client."
                if one.rejected
                else b"Offset delivery count exceeded the threshold.",
            }
        found += records
    assert found == dead


def test_native_entries_have_the_value_that_clients_see() -> None:
    letter = letter_of(PLACE, DeadRecord(b"1-0", 1, 1, True, [b"name", b"own"]), NATIVE, MOST_BYTES)
    ((_, data),) = batches_of([letter], NOW_MS, MOST_BYTES)
    (record,) = read(data)
    assert (record.key, record.value) == (None, b'{"name":"own"}')


def test_a_letter_that_is_too_large_goes_alone() -> None:
    dead = [DeadRecord(b"%d-0" % number, number, 1, True, ()) for number in range(3)]
    letters = [Letter(one, letter_of(PLACE, one, NATIVE, MOST_BYTES).body) for one in dead]
    batches = list(batches_of(letters, NOW_MS, 1))
    assert [records for records, _ in batches] == [[one] for one in dead]

"""Random records produced by librdkafka, read by Java, aiokafka and XRANGE: same bytes, order, offsets."""

from __future__ import annotations

import asyncio
import itertools
import os
import time

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from korvet.offsets.packing import entry_id
from tests.support.confluent import producer, send
from tests.support.records import CODECS, RecordMaker, digest

pytestmark = pytest.mark.clients

# Records are created and sent in runs, each with the next codec. Only their digests are kept.
RUN_LENGTH = 500
SEED = int(os.environ.get("KORVET_TEST_SEED", "20261121"))

Line = tuple[int, str]


def write_random(broker, topic: str, count: int, seed: int) -> list[Line]:
    """Produce `count` records. Returns the offset of each, from its delivery report, and its digest."""
    maker = RecordMaker(seed)
    now_ms = time.time_ns() // 1_000_000
    clients = {
        codec: producer(broker.bootstrap, compression_type=codec, linger_ms=5, message_max_bytes=1_048_588)
        for codec in CODECS
    }
    lines: list[Line] = []
    for run in range(-(-count // RUN_LENGTH)):
        records = [maker.record(now_ms) for _ in range(min(RUN_LENGTH, count - len(lines)))]
        offsets = send(clients[CODECS[run % len(CODECS)]], topic, 0, records)
        lines += [(offset, record.digest()) for offset, record in zip(offsets, records, strict=True)]
    return lines


def first_difference(found: list[Line], expected: list[Line]) -> str:
    for number, (left, right) in enumerate(zip(found, expected, strict=False)):
        if left != right:
            return f"record {number}: {left} instead of {right} (seed {SEED})"
    return f"{len(found)} records instead of {len(expected)} (seed {SEED})"


def check(found: list[Line], expected: list[Line]) -> None:
    """Not a plain assert on the lists: its difference report takes minutes on lists of this length."""
    if found != expected:
        pytest.fail(first_difference(found, expected))


async def read_with_aiokafka(broker, topic: str, count: int) -> list[Line]:
    lines: list[Line] = []
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as client:
        partition = TopicPartition(topic, 0)
        client.assign([partition])
        await client.seek_to_beginning(partition)
        while len(lines) < count:
            batches = await asyncio.wait_for(client.getmany(timeout_ms=1000), 30)
            for record in batches.get(partition, []):
                content = digest(record.key, record.value, record.headers, record.timestamp)
                lines.append((record.offset, content))
    return lines


def read_with_java(broker, topic: str, java, timeout_s: float) -> list[Line]:
    printed = java.run("ReadBack", broker.bootstrap, topic, "0", timeout_s=timeout_s)
    return [(int(offset), content) for offset, content in (line.split() for line in printed.splitlines())]


def read_with_xrange(korvet, topic: str) -> list[tuple[str, str]]:
    """Returns (entry ID, digest) of each entry, using only the documented fields."""
    found: list[tuple[str, str]] = []
    start = "-"
    while entries := korvet.raw("XRANGE", f"korvet:{topic}:0", start, "+", "COUNT", 1000):
        for raw_id, fields in raw_entries(entries):
            found.append((raw_id, entry_digest(raw_id, fields)))
        start = f"({found[-1][0]}"
    return found


def raw_entries(entries) -> list[tuple[str, list[tuple[bytes, bytes]]]]:
    return [(raw_id.decode(), list(zip(flat[::2], flat[1::2], strict=True))) for raw_id, flat in entries]


def entry_digest(raw_id: str, fields: list[tuple[bytes, bytes]]) -> str:
    single = {name: value for name, value in fields if name in (b"key", b"value", b"ts")}
    headers: list[tuple[str, bytes | None]] = []
    for name, value in fields:
        if name.startswith(b"nullheader."):
            headers.append((name.removeprefix(b"nullheader.").decode(), None))
        elif name.startswith(b"header."):
            headers.append((name.removeprefix(b"header.").decode(), value))
    timestamp_ms = int(raw_id.partition("-")[0]) + int(single.get(b"ts", b"0"))
    return digest(single.get(b"key"), single.get(b"value"), headers, timestamp_ms)


def read_everywhere(broker, topic: str, java, expected: list[Line], timeout_s: float) -> None:
    offsets = [offset for offset, _ in expected]
    assert all(left < right for left, right in itertools.pairwise(offsets))
    check(asyncio.run(read_with_aiokafka(broker, topic, len(expected))), expected)
    check(read_with_java(broker, topic, java, timeout_s), expected)
    if broker.korvet is not None:
        entries = read_with_xrange(broker.korvet, topic)
        assert len(entries) == len(expected)
        for (found_id, found), (offset, wanted) in zip(entries, expected, strict=True):
            assert (found_id, found) == (entry_id(offset), wanted), f"offset {offset} (seed {SEED})"


def test_random_records(broker, topic, java):
    read_everywhere(broker, topic, java, write_random(broker, topic, 5_000, SEED), 60)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_random_records(broker, topic, java):
    read_everywhere(broker, topic, java, write_random(broker, topic, 100_000, SEED + 1), 600)

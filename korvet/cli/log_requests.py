"""Requests about a partition's log (ListOffsets and Fetch), and the records in a fetch response."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import NamedTuple

from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.serial.readers import read_signed_varint, read_signed_varlong
from kio.static.primitive import i8, i32, i32Timedelta, i64

from korvet.cli.client import Cluster, check
from korvet.offsets.record_batch import (
    BASE_OFFSET_AND_LENGTH,
    CODEC_MASK,
    CONTROL,
    HEADER,
    LENGTH_EXCLUDES_BYTES,
    LOG_APPEND_TIME,
)
from korvet.records.compression import decompress

# Special timestamps of ListOffsets: the two ends of a log.
EARLIEST, LATEST = -2, -1

# Limits a fetch response, in bytes, over all partitions and per partition. A larger first batch still arrives
# whole.
_FETCH_BYTES = i32(8 * 1024 * 1024)
_PARTITION_BYTES = 1024 * 1024
_NO_EPOCH = i32(-1)
_CLIENT = BrokerId(-1)
_ALL_RECORDS = i8(0)
_MOST_DECOMPRESSED_BYTES = 256 * 1024 * 1024


class LogRecord(NamedTuple):
    """One record of a partition: its offset, timestamp (ms), key, value and headers."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class FetchedRecords(NamedTuple):
    """The records of a partition in one fetch response. `next_offset` is the offset of the next fetch."""

    records: list[LogRecord]
    next_offset: int


def list_offsets(cluster: Cluster, topic: str, partitions: Iterable[int], timestamp: int) -> dict[int, int]:
    """Returns each partition's offset for a time in ms, EARLIEST or LATEST (-1: no record is that late)."""
    offsets: dict[int, int] = {}
    for broker, led in cluster.leaders(topic, partitions).items():
        asked = tuple(
            ListOffsetsPartition(
                partition_index=i32(partition), current_leader_epoch=_NO_EPOCH, timestamp=i64(timestamp)
            )
            for partition in led
        )
        request = ListOffsetsRequest(
            replica_id=_CLIENT,
            isolation_level=_ALL_RECORDS,
            topics=(ListOffsetsTopic(name=TopicName(topic), partitions=asked),),
        )
        for answer in cluster.ask(request, ListOffsetsResponse, broker).topics:
            for part in answer.partitions:
                check(part.error_code, f"{topic} partition {part.partition_index}")
                offsets[int(part.partition_index)] = int(part.offset)
    return offsets


def fetch(
    cluster: Cluster,
    topic: str,
    positions: Mapping[int, int],
    wait_ms: int,
    partition_bytes: int = _PARTITION_BYTES,
) -> dict[int, FetchedRecords]:
    """Returns records from the given offsets on, of all partitions, and of each about `partition_bytes`.

    Waits up to `wait_ms` for the first one.
    """
    fetched: dict[int, FetchedRecords] = {}
    leaders = cluster.leaders(topic, positions)
    for broker, led in leaders.items():
        wanted = {part: positions[part] for part in led}
        request = _fetch_request(topic, wanted, wait_ms // len(leaders), partition_bytes)
        answer = cluster.ask(request, FetchResponse, broker)
        check(answer.error_code, topic)
        for described in answer.responses:
            for part in described.partitions:
                index = int(part.partition_index)
                check(part.error_code, f"{topic} partition {index}")
                fetched[index] = _read(part.records or b"", positions[index])
    return fetched


def _fetch_request(
    topic: str, positions: Mapping[int, int], wait_ms: int, partition_bytes: int
) -> FetchRequest:
    partitions = tuple(
        FetchPartition(
            partition=i32(index),
            current_leader_epoch=_NO_EPOCH,
            fetch_offset=i64(offset),
            last_fetched_epoch=_NO_EPOCH,
            log_start_offset=i64(-1),
            partition_max_bytes=i32(partition_bytes),
        )
        for index, offset in positions.items()
    )
    return FetchRequest(
        replica_id=_CLIENT,
        max_wait=i32Timedelta.parse(timedelta(milliseconds=wait_ms)),
        min_bytes=i32(1),
        max_bytes=_FETCH_BYTES,
        isolation_level=_ALL_RECORDS,
        session_id=i32(0),
        session_epoch=_NO_EPOCH,
        topics=(FetchTopic(topic=TopicName(topic), partitions=partitions),),
        forgotten_topics_data=(),
        rack_id="",
    )


def _read(data: bytes, position: int) -> FetchedRecords:
    """Returns the records from `position` on. A batch that Kafka truncated is left for the next fetch."""
    records: list[LogRecord] = []
    at, next_offset = 0, position
    while len(data) - at >= LENGTH_EXCLUDES_BYTES:
        size = LENGTH_EXCLUDES_BYTES + BASE_OFFSET_AND_LENGTH.unpack_from(data, at)[1]
        if len(data) - at < size:
            break
        base_offset, _, _, _, _, _, last_delta, *_ = HEADER.unpack_from(data, at)
        records += [record for record in _batch(data[at : at + size]) if record.offset >= position]
        next_offset = max(next_offset, base_offset + last_delta + 1)
        at += size
    return FetchedRecords(records, next_offset)


def _batch(data: bytes) -> Iterator[LogRecord]:
    """Yields the records of one batch, none of a control batch. Kafka's compacted batches have gaps."""
    base_offset, _, _, _, _, attributes, _, base_timestamp_ms, newest_ms, *_, count = HEADER.unpack_from(data)
    if attributes & CONTROL:
        return
    body = decompress(attributes & CODEC_MASK, data[HEADER.size :], _MOST_DECOMPRESSED_BYTES)
    at = 0
    for _ in range(count):
        length, size = read_signed_varint(body, at)
        at += size
        end = at + length
        timestamp_delta, size = read_signed_varlong(body, at + 1)
        at += 1 + size
        offset_delta, size = read_signed_varint(body, at)
        at += size
        key, at = _nullable(body, at)
        value, at = _nullable(body, at)
        headers = _headers(body, at)
        timestamp_ms = newest_ms if attributes & LOG_APPEND_TIME else base_timestamp_ms + timestamp_delta
        yield LogRecord(base_offset + offset_delta, timestamp_ms, key, value, headers)
        at = end


def _headers(body: bytes, at: int) -> tuple[tuple[str, bytes | None], ...]:
    count, size = read_signed_varint(body, at)
    at += size
    headers = []
    for _ in range(count):
        name, at = _nullable(body, at)
        value, at = _nullable(body, at)
        # Kafka checks no names; a record with any can be read.
        headers.append(((name or b"").decode("utf-8", "replace"), value))
    return tuple(headers)


def _nullable(body: bytes, at: int) -> tuple[bytes | None, int]:
    length, size = read_signed_varint(body, at)
    at += size
    return (None, at) if length < 0 else (body[at : at + length], at + length)

"""Checks of a produced record batch: whether its partition exists and the client may write to it, its header
before it is decompressed, and its records before the append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.api.producing.response import RecordError, Refused
from korvet.offsets.packing import MAX_MS
from korvet.offsets.record_batch import NO_TIMESTAMP, ZSTD
from korvet.records import kernel
from korvet.redis.keys import OFFSETS_TOPIC
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from uuid import UUID

    from korvet.api.common.context import RequestContext
    from korvet.log.values import ReceivedBatch
    from korvet.records.batch import AppendArguments, BatchHeader, BytesLike
    from korvet.records.produce_request import ProduceRequest
    from korvet.security.authorizer import Access
    from korvet.topics.configs import TopicPolicy
    from korvet.topics.directory import Place

_ACKS: Final = (-1, 0, 1)
_ZSTD_SINCE: Final = 7
# Create times (ms) are int64, and so are their differences from the times of entry IDs.
_EARLIEST_MS: Final = -(2**63) + MAX_MS
_LATEST_MS: Final = 2**63 - 1
# Records of a compressed batch. Redis adds the entries of a batch in one call, at 1 to 4 us each, and serves
# no other client during that time. Producers hardly ever send more: librdkafka 10,000, most others 1 MB
# before compression.
_MOST_COMPRESSED_RECORDS: Final = 75_000
MOST_NAMED: Final = 1000
"""Bad records that a response names, and one of each further batch. If a client leaves these out, the next
refusal names others.
"""
_NEEDS_KEY: Final = "a compacted topic takes no records without a key"


def locate(context: RequestContext, request: ProduceRequest, key: str | UUID | None, index: int) -> Place:
    """The partition with that index of a topic, which the request names by `key`. Raises Refused."""
    if request.acks not in _ACKS:
        raise Refused(ErrorCode.invalid_required_acks, f"acks of {request.acks} is none of -1, 0 and 1")
    topics = context.services.topics
    place = topics.place(key, index)
    if context.client.session.access is not None:
        found = topics.find(key) if place is None else place.topic
        name = key if found is None else found.name
        _authorize(context.client.session.access, request.transactional_id, name)
    if place is None:
        raise _absent(context, key)
    name = place.topic.name
    writable = name == OFFSETS_TOPIC and context.services.config.offsets_topic_writable
    if (place.topic.internal and not writable) or place.is_alias:
        raise Refused(ErrorCode.invalid_topic_exception, f"{name} is written by the broker only")
    return place


def _authorize(access: Access, transactional_id: str | None, name: str | UUID | None) -> None:
    """Raises Refused unless the client may use the transactional ID, if there is one, and write to the topic,
    if its name is known.
    """
    kind = ResourceType.TRANSACTIONAL_ID
    if transactional_id is not None and not access.allows(Operation.WRITE, kind, transactional_id):
        raise Refused(ErrorCode.transactional_id_authorization_failed, "")
    if isinstance(name, str) and not access.allows(Operation.WRITE, ResourceType.TOPIC, name):
        raise Refused(ErrorCode.topic_authorization_failed, "")


def _absent(context: RequestContext, key: str | UUID | None) -> Refused:
    """The refusal of a batch for a partition that does not exist."""
    topics = context.services.topics
    found = topics.find(key)
    if found is None:
        topics.missed()
        by_name = isinstance(key, str)
        error = ErrorCode.unknown_topic_or_partition if by_name else ErrorCode.unknown_topic_id
        return Refused(error, "this server does not host this topic")
    return Refused(ErrorCode.unknown_topic_or_partition, f"{found.name} has {found.partitions} partition(s)")


def read_header(records: BytesLike | None, policy: TopicPolicy, version: int) -> BatchHeader:
    """The header of a partition's one batch in a request of that version. Raises BatchError and Refused."""
    if not records:
        raise Refused(ErrorCode.invalid_record, "the partition has no record batch")
    if len(records) > policy.max_message_bytes:
        raise Refused(
            ErrorCode.message_too_large,
            f"a batch of {len(records)} bytes exceeds max.message.bytes {policy.max_message_bytes}",
        )
    header = kernel.parse_batch(records, 0)
    if header.size != len(records):
        raise Refused(ErrorCode.invalid_record, "a partition has to have exactly one record batch")
    if header.base_offset:
        raise Refused(ErrorCode.invalid_record, f"the base offset has to be 0, not {header.base_offset}")
    if header.control:
        raise Refused(ErrorCode.invalid_record, "clients must not write control records")
    if header.codec == ZSTD and version < _ZSTD_SINCE:
        raise Refused(ErrorCode.unsupported_compression_type, f"zstd needs Produce v{_ZSTD_SINCE} (KIP-110)")
    if header.codec and header.record_count > _MOST_COMPRESSED_RECORDS:
        raise Refused(
            ErrorCode.message_too_large,
            f"a compressed batch of {header.record_count} records exceeds {_MOST_COMPRESSED_RECORDS}",
        )
    return header


def check_newest(header: BatchHeader, policy: TopicPolicy, now_ms: int, most_named: int) -> None:
    """Raises Refused, with up to `most_named` bad records, if the header shows that all are too old."""
    newest_ms = header.max_timestamp_ms
    if policy.log_append_time or newest_ms == NO_TIMESTAMP:
        return
    earliest, _ = _valid_times(policy, now_ms)
    if newest_ms < earliest:
        message = f"{newest_ms}, the newest timestamp of the batch, is before {earliest}"
        named = range(min(header.record_count, most_named))
        raise Refused(ErrorCode.invalid_timestamp, message, [RecordError(index, message) for index in named])


def check_records(
    policy: TopicPolicy, received: ReceivedBatch, now_ms: int, most_named: int, summary: AppendArguments
) -> None:
    """Raises Refused, with up to `most_named` bad records, if a record has a timestamp out of range or lacks
    its key.
    """
    earliest, latest = -(2**63), _LATEST_MS
    oldest_ms = summary.min_timestamp_ms
    in_time = True
    if not policy.log_append_time:
        earliest, latest = _valid_times(policy, now_ms)
        # Kafka accepts -1, which is "no timestamp".
        in_time = summary.max_timestamp_ms <= latest and (oldest_ms >= earliest or oldest_ms == NO_TIMESTAMP)
    keyed = policy.compacts
    if in_time and not (keyed and summary.keyless_count):
        return
    bad = kernel.find_invalid(
        received.data, 0, received.header, received.plain, earliest, latest, keyed, most_named
    )
    errors = [
        RecordError(
            index,
            _NEEDS_KEY if keyless else f"the timestamp {timestamp_ms} is outside {earliest} to {latest}",
        )
        for index, timestamp_ms, keyless in bad
    ]
    if in_time:
        raise Refused(ErrorCode.invalid_record, _NEEDS_KEY, errors)
    raise Refused(
        ErrorCode.invalid_timestamp,
        f"timestamps from {oldest_ms} to {summary.max_timestamp_ms} are outside {earliest} to {latest}",
        errors,
    )


def _valid_times(policy: TopicPolicy, now_ms: int) -> tuple[int, int]:
    """The earliest and the latest create time (ms) that a record may have."""
    return (
        max(now_ms - policy.timestamp_before_max_ms, _EARLIEST_MS),
        min(now_ms + policy.timestamp_after_max_ms, _LATEST_MS),
    )

"""DescribeLogDirs (key 35), versions 1-5 (KIP-113).

A broker has one log directory, named after the keyspace. A size is the number of bytes in fields and values.
v2 is flexible, v3 adds an error, v4 the volume's size (KIP-827: the memory of all Redis servers up to
maxmemory, and what is free of it), v5 cordoned folders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.outlook.memory_forecast import used_and_limit
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import gathered, sliced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.api.common.context import RequestContext
    from korvet.log.partition_log import PartitionLog

_ERROR_SINCE: Final = 3
# Bytes of a volume, and what is free of them.
_UNKNOWN: Final = -1, -1


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error alone. Versions without an error for the whole response carry it in the one directory."""
    del request
    results = () if context.api_version >= _ERROR_SINCE else (_result(context, error, (), _UNKNOWN),)
    return context.make("DescribeLogDirsResponse", error_code=error, results=results)


@api(35, "DescribeLogDirs", (1, 5), refuse=refuse)
async def describe_log_dirs(context: RequestContext, request: Any) -> Any:
    """The sizes of the requested partitions that this broker leads. Unknown partitions are left out."""
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        # Versions before the one with an error have no place for it: Kafka answers them with nothing.
        return context.make(
            "DescribeLogDirsResponse", error_code=ErrorCode.cluster_authorization_failed, results=()
        )
    asked = await _asked(context, request)
    logs = [log for _, logs in asked for log in logs]
    sizes: dict[PartitionLog, int] = {}
    error = ErrorCode.none
    try:
        bounds = await gathered(log.bounds() for log in logs)
        sizes = {log: found.payload_bytes for log, found in zip(logs, bounds, strict=True)}
    except StorageError as failed:
        error, asked = error_code_of(failed), []
    topics = [_topic(context, name, logs, sizes) async for name, logs in sliced(asked) if logs]
    result = _result(context, error, tuple(topics), _volume(context))
    return context.make("DescribeLogDirsResponse", error_code=ErrorCode.none, results=(result,))


def log_dir(context: RequestContext) -> str:
    """The one place of all that a broker leads."""
    return f"/{context.services.config.keyspace}"


def _volume(context: RequestContext) -> tuple[int, int]:
    """The memory of all servers, and what is free of it, in bytes; unknown if one has not reported."""
    found = [used_and_limit(each.info) for each in context.services.servers.readings.values()]
    used = [each for each in found if each is not None]
    if not used or len(used) != len(found):
        return _UNKNOWN
    free_bytes = sum(max(limit_bytes - used_bytes, 0) for used_bytes, limit_bytes in used)
    return sum(limit_bytes for _, limit_bytes in used), free_bytes


def _result(
    context: RequestContext, error: ErrorCode, topics: tuple[Any, ...], volume: tuple[int, int]
) -> Any:
    total_bytes, usable_bytes = volume
    return context.make(
        "DescribeLogDirsResult",
        error_code=error,
        log_dir=log_dir(context),
        topics=topics,
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
        is_cordoned=False,
    )


async def _asked(context: RequestContext, request: Any) -> list[tuple[str, list[PartitionLog]]]:
    """By topic, the logs that this broker leads: of all topics if the request names none."""
    topics = context.services.topics
    partitions: dict[str, dict[int, None]] = {}
    if request.topics is None:
        partitions = {topic.name: dict.fromkeys(range(topic.partitions)) for topic in topics.all()}
    for each in request.topics or ():
        partitions.setdefault(each.topic, {}).update(dict.fromkeys(each.partitions))
    found = []
    for name, indexes in partitions.items():
        logs = [topics.log(name, index) async for index in sliced(indexes)]
        found.append((name, [log for log in logs if log is not None and not log.closed]))
    return found


def _topic(
    context: RequestContext, name: str, logs: Sequence[PartitionLog], sizes: dict[PartitionLog, int]
) -> Any:
    partitions = tuple(
        context.make(
            "DescribeLogDirsPartition",
            partition_index=log.partition,
            partition_size=sizes[log],
            offset_lag=0,
            is_future_key=False,
        )
        for log in logs
    )
    return context.make("DescribeLogDirsTopic", name=name, partitions=partitions)

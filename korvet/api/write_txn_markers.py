"""WriteTxnMarkers (key 27), version 1 (KIP-98).

Ends a producer's transaction in partitions that this broker leads. Used by transaction coordinators, and by
administrators for hanging transactions (`kafka-transactions abort`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.records.control import ControlMarker
from korvet.security.acls import Operation, ResourceType
from korvet.slices import gathered

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    markers = tuple(
        _result(context, marker, [[error] * len(topic.partition_indexes) for topic in marker.topics])
        for marker in request.markers
    )
    return context.make("WriteTxnMarkersResponse", markers=markers)


@api(27, "WriteTxnMarkers", (1, 1), refuse=refuse)
async def write_txn_markers(context: RequestContext, request: Any) -> Any:
    """Write all markers concurrently. Each follows all earlier appends to its partition."""
    may = partial(context.may, kind=ResourceType.CLUSTER)
    if not may(Operation.CLUSTER_ACTION) and not may(Operation.ALTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    markers = await gathered(_write(context, marker) for marker in request.markers)
    return context.make("WriteTxnMarkersResponse", markers=tuple(markers))


async def _write(context: RequestContext, asked: Any) -> Any:
    marker = ControlMarker(
        asked.producer_id, asked.producer_epoch, asked.transaction_result, asked.coordinator_epoch
    )
    write = context.services.markers.write
    errors = [
        await gathered(write((topic.name, index), marker) for index in topic.partition_indexes)
        for topic in asked.topics
    ]
    return _result(context, asked, errors)


def _result(context: RequestContext, marker: Any, errors: list[list[ErrorCode]]) -> Any:
    topics = tuple(
        context.make(
            "WritableTxnMarkerTopicResult",
            name=topic.name,
            partitions=tuple(
                context.make("WritableTxnMarkerPartitionResult", partition_index=index, error_code=error)
                for index, error in zip(topic.partition_indexes, of_topic, strict=True)
            ),
        )
        for topic, of_topic in zip(marker.topics, errors, strict=True)
    )
    return context.make("WritableTxnMarkerResult", producer_id=marker.producer_id, topics=topics)

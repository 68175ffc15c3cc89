"""ElectLeaders (key 43), versions 0-2 (KIP-183, KIP-460).

The preferred leader of a partition already leads it, because the brokers select the leader by hashing. So no
election is ever needed. v1 adds unclean elections, v2 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = [
        _topic(context, each.topic, [_partition(context, index, error) for index in each.partitions])
        for each in request.topic_partitions or ()
    ]
    return _response(context, error, topics)


@api(43, "ElectLeaders", (0, 2), refuse=refuse)
async def elect_leaders(context: RequestContext, request: Any) -> Any:
    """Report for each named partition that no election is needed. A request for all partitions gets none."""
    if not context.may(Operation.ALTER, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    if getattr(request, "election_type", _PREFERRED) not in (_PREFERRED, _UNCLEAN):
        return refuse(context, request, ErrorCode.invalid_request)
    results = []
    async for asked in sliced(request.topic_partitions or ()):
        topic = context.services.topics.get(asked.topic)
        there = range(0 if topic is None else topic.partitions)
        partitions = [
            _partition(context, index, _error(index in there)) async for index in sliced(asked.partitions)
        ]
        results.append(_topic(context, asked.topic, partitions))
    return _response(context, ErrorCode.none, results)


def _error(is_there: bool) -> ErrorCode:
    return ErrorCode.election_not_needed if is_there else ErrorCode.unknown_topic_or_partition


def _partition(context: RequestContext, index: int, error: ErrorCode) -> Any:
    return context.make("PartitionResult", partition_id=index, error_code=error, error_message=None)


def _topic(context: RequestContext, name: str, partitions: list[Any]) -> Any:
    return context.make("ReplicaElectionResult", topic=name, partition_result=tuple(partitions))


def _response(context: RequestContext, error: ErrorCode, topics: list[Any]) -> Any:
    return context.make("ElectLeadersResponse", error_code=error, replica_election_results=tuple(topics))

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
    asked = request.topic_partitions or ()
    return _response(
        context, error, [(each.topic, [(index, error) for index in each.partitions]) for each in asked]
    )


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
        count = 0 if topic is None else topic.partitions
        results.append(
            (
                asked.topic,
                [
                    (
                        index,
                        ErrorCode.election_not_needed
                        if 0 <= index < count
                        else ErrorCode.unknown_topic_or_partition,
                    )
                    async for index in sliced(asked.partitions)
                ],
            )
        )
    return _response(context, ErrorCode.none, results)


def _response(
    context: RequestContext, error: ErrorCode, topics: list[tuple[str, list[tuple[int, ErrorCode]]]]
) -> Any:
    results = tuple(
        context.make(
            "ReplicaElectionResult",
            topic=name,
            partition_result=tuple(
                context.make("PartitionResult", partition_id=index, error_code=found, error_message=None)
                for index, found in partitions
            ),
        )
        for name, partitions in topics
    )
    return context.make("ElectLeadersResponse", error_code=error, replica_election_results=results)

"""ListPartitionReassignments (key 46), version 0 (KIP-455).

Returns nothing: partitions never move between replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error alone."""
    del request
    return context.make("ListPartitionReassignmentsResponse", error_code=error, error_message=None, topics=())


@api(46, "ListPartitionReassignments", (0, 0), refuse=refuse)
async def list_partition_reassignments(context: RequestContext, request: Any) -> Any:
    """None."""
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    return refuse(context, request, ErrorCode.none)

"""DescribeCluster (key 60), versions 0-2.

v1 adds the endpoint type (KIP-919; there are no separate controllers), v2 fenced brokers (KIP-1073).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.operations import NOT_ASKED, cluster_operations
from korvet.protocol.registry import api
from korvet.redis.clock import steady_s

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def refuse(context: RequestContext, request: Any, error: ErrorCode, message: str | None = None) -> Any:
    """The error with no brokers."""
    del request
    return context.make(
        "DescribeClusterResponse",
        error_code=error,
        error_message=message,
        endpoint_type=_BROKERS,
        cluster_id="",
        controller_id=-1,
        brokers=(),
        cluster_authorized_operations=NOT_ASKED,
    )


@api(60, "DescribeCluster", (0, 2), refuse=refuse)
async def describe_cluster(context: RequestContext, request: Any) -> Any:
    """Cluster id, controller and brokers."""
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type == _CONTROLLERS:
        return refuse(
            context, request, ErrorCode.mismatched_endpoint_type, "This broker has no controller endpoints."
        )
    if endpoint_type != _BROKERS:
        return refuse(
            context,
            request,
            ErrorCode.unsupported_endpoint_type,
            f"Unsupported endpoint type {endpoint_type}",
        )
    services = context.services
    assignment = services.leadership.assignment
    brokers = tuple(
        context.make(
            "DescribeClusterBroker",
            broker_id=node_id,
            host=host,
            port=port,
            rack=None,
            is_fenced=False,
        )
        for node_id, host, port in services.leadership.endpoints(context.client.listener, steady_s())
    )
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(context)
    return context.make(
        "DescribeClusterResponse",
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=services.cluster_id,
        controller_id=assignment.controller.node_id,
        brokers=brokers,
        cluster_authorized_operations=operations,
    )

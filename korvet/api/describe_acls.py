"""DescribeAcls (key 29), versions 1-3 (KIP-140).

Needs Describe on the cluster. Without an authorizer, it returns SECURITY_DISABLED. v1 adds pattern types
(KIP-290), v2 is flexible, v3 adds users as resources (KIP-373).
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.acl_messages import UNKNOWN_ELEMENTS, description, filter_of
from korvet.protocol.registry import api
from korvet.security.acls import Acl, Operation, ResourceType, find

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_NO_AUTHORIZER: Final = "No Authorizer is configured on the broker"


def refuse(context: RequestContext, request: Any, error: ErrorCode, message: str | None = None) -> Any:
    """The error with no resources."""
    del request
    return context.make("DescribeAclsResponse", error_code=error, error_message=message, resources=())


@api(29, "DescribeAcls", (1, 3), refuse=refuse)
async def describe_acls(context: RequestContext, request: Any) -> Any:
    """The bindings that the filter means, by resource."""
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    security = context.services.security
    if security.authorizer is None:
        return refuse(context, request, ErrorCode.security_disabled, _NO_AUTHORIZER)
    wanted = filter_of(request)
    if not wanted.is_known:
        return refuse(context, request, ErrorCode.invalid_request, UNKNOWN_ELEMENTS)
    await security.refresh()
    resources = tuple(
        context.make(
            "DescribeAclsResource",
            resource_type=kind,
            resource_name=name,
            pattern_type=pattern_type,
            acls=tuple(description(context, acl) for acl in acls),
        )
        for (kind, name, pattern_type), acls in groupby(find(security.authorizer.acls, wanted), _resource)
    )
    return context.make(
        "DescribeAclsResponse", error_code=ErrorCode.none, error_message=None, resources=resources
    )


def _resource(acl: Acl) -> tuple[int, str, int]:
    return acl.resource_type, acl.name, acl.pattern_type

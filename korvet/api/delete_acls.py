"""DeleteAcls (key 31), versions 1-3 (KIP-140).

Returns the deleted bindings of each filter. Needs Alter on the cluster. v1 adds pattern types (KIP-290), v2
is flexible, v3 adds users as resources (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.acl_messages import NO_AUTHORIZER, UNKNOWN_ELEMENTS, filter_of
from korvet.protocol.registry import api
from korvet.security.acls import Acl, Operation, ResourceType, find
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode, message: str | None = None) -> Any:
    """Every filter with the error."""
    return context.make(
        "DeleteAclsResponse",
        filter_results=tuple(_result(context, error, message, ()) for _ in request.filters),
    )


@api(31, "DeleteAcls", (1, 3), refuse=refuse, changes_shared=True)
async def delete_acls(context: RequestContext, request: Any) -> Any:
    """Forget the bindings that the filters mean."""
    if not context.may(Operation.ALTER, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    security = context.services.security
    if security.authorizer is None:
        return refuse(context, request, ErrorCode.security_disabled, NO_AUTHORIZER)
    await security.refresh()
    results = []
    gone: set[Acl] = set()
    async for asked in sliced(request.filters):
        wanted = filter_of(asked)
        if not wanted.is_known:
            results.append(_result(context, ErrorCode.invalid_request, UNKNOWN_ELEMENTS, ()))
            continue
        found = find(security.authorizer.acls, wanted)
        gone.update(found)
        results.append(_result(context, ErrorCode.none, None, found))
    await security.change_acls((), sorted(gone))
    return context.make("DeleteAclsResponse", filter_results=tuple(results))


def _result(context: RequestContext, error: ErrorCode, message: str | None, acls: Sequence[Acl]) -> Any:
    matching = tuple(
        context.make(
            "DeleteAclsMatchingAcl",
            error_code=ErrorCode.none,
            error_message=None,
            resource_type=acl.resource_type,
            resource_name=acl.name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    )
    return context.make(
        "DeleteAclsFilterResult", error_code=error, error_message=message, matching_acls=matching
    )

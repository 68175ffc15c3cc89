"""CreateAcls (key 30), versions 1-3 (KIP-140).

Creates or refuses each binding on its own; an existing binding isn't an error. Needs Alter on the cluster. v1
adds pattern types (KIP-290), v2 is flexible, v3 adds users as resources (KIP-373).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.acl_messages import NO_AUTHORIZER, acl_of
from korvet.protocol.registry import api
from korvet.security.acls import Acl, InvalidAcl, Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode, message: str | None = None) -> Any:
    """Every binding with the error."""
    refused = _result(context, error, message)
    return context.make("CreateAclsResponse", results=(refused,) * len(request.creations))


@api(30, "CreateAcls", (1, 3), refuse=refuse, changes_shared=True)
async def create_acls(context: RequestContext, request: Any) -> Any:
    """Store the bindings; they are in force here when answered, and everywhere within a second."""
    if not context.may(Operation.ALTER, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    security = context.services.security
    if security.authorizer is None:
        return refuse(context, request, ErrorCode.security_disabled, NO_AUTHORIZER)
    results = []
    added: list[Acl] = []
    async for asked in sliced(request.creations):
        acl = acl_of(asked)
        try:
            acl.check()
        except InvalidAcl as invalid:
            results.append(_result(context, ErrorCode.invalid_request, str(invalid)))
        else:
            added.append(acl)
            results.append(_result(context, ErrorCode.none, None))
    await security.change_acls(added, ())
    return context.make("CreateAclsResponse", results=tuple(results))


def _result(context: RequestContext, error: ErrorCode, message: str | None) -> Any:
    return context.make("AclCreationResult", error_code=error, error_message=message)

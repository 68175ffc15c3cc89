"""DescribeUserScramCredentials (key 50), version 0 (KIP-554).

Returns the mechanisms of users, never a secret. Needs Describe on the cluster.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no users."""
    del request
    return context.make(
        "DescribeUserScramCredentialsResponse", error_code=error, error_message=None, results=()
    )


@api(50, "DescribeUserScramCredentials", (0, 0), refuse=refuse)
async def describe_user_scram_credentials(context: RequestContext, request: Any) -> Any:
    """The requested users; all users if the request names none."""
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    security = context.services.security
    await security.refresh()
    known: dict[str, dict[int, int]] = {}
    for (user, mechanism), credential in sorted(
        security.credentials.scram.items(), key=lambda item: (item[0][0], item[0][1].number)
    ):
        known.setdefault(user, {})[mechanism.number] = credential.iterations
    asked = Counter(user.name for user in request.users or ()) or Counter(known.keys())
    results = [
        _result(context, name, times > 1, known.get(name)) async for name, times in sliced(asked.items())
    ]
    return context.make(
        "DescribeUserScramCredentialsResponse",
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(results),
    )


def _result(context: RequestContext, name: str, repeated: bool, found: dict[int, int] | None) -> Any:
    error, message = ErrorCode.none, None
    if repeated:
        error = ErrorCode.duplicate_resource
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif found is None:
        error = ErrorCode.resource_not_found
        message = f"Attempt to describe a user credential that does not exist: {name}"
    infos = () if error is not ErrorCode.none or found is None else tuple(found.items())
    return context.make(
        "DescribeUserScramCredentialsResult",
        user=name,
        error_code=error,
        error_message=message,
        credential_infos=tuple(
            context.make("CredentialInfo", mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in infos
        ),
    )

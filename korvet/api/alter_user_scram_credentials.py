"""AlterUserScramCredentials (key 51), version 0 (KIP-554).

Makes all changes of a user, or none. Clients send salted passwords; the stored credentials can't be used to
authenticate. Needs Alter on the cluster.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.security.scram import BY_NUMBER, MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every user with the error."""
    users = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return _response(context, [(user, error, None) for user in users])


@api(51, "AlterUserScramCredentials", (0, 0), refuse=refuse, changes_shared=True)
async def alter_user_scram_credentials(context: RequestContext, request: Any) -> Any:
    """Store and forget credentials; in force here when answered, and everywhere within a second."""
    if not context.may(Operation.ALTER, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    security = context.services.security
    await security.refresh()
    changes = (*request.deletions, *request.upsertions)
    times = Counter((each.name, each.mechanism) for each in changes)
    refused: dict[str, tuple[ErrorCode, str]] = {}
    for change in changes:
        reason = _check(change, times[change.name, change.mechanism] > 1)
        if reason is not None:
            refused.setdefault(change.name, reason)
    for deletion in request.deletions:
        if deletion.name in refused:
            continue
        if (deletion.name, BY_NUMBER[deletion.mechanism]) not in security.credentials.scram:
            refused[deletion.name] = (
                ErrorCode.resource_not_found,
                "Attempt to delete a user credential that does not exist",
            )
    await security.change_users(
        {
            (each.name, BY_NUMBER[each.mechanism]): ScramCredential.of(
                BY_NUMBER[each.mechanism], each.salt, each.salted_password, each.iterations
            )
            for each in request.upsertions
            if each.name not in refused
        },
        [(each.name, BY_NUMBER[each.mechanism]) for each in request.deletions if each.name not in refused],
    )
    users = dict.fromkeys(each.name for each in changes)
    return _response(context, [(user, *refused.get(user, (ErrorCode.none, None))) for user in users])


def _check(change: Any, repeated: bool) -> tuple[ErrorCode, str] | None:
    """The reason why a change is refused, in Kafka's words; None if it is accepted."""
    if not change.name:
        return ErrorCode.unacceptable_credential, "Username must not be empty"
    if change.mechanism not in BY_NUMBER:
        return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
    if repeated:
        return (
            ErrorCode.duplicate_resource,
            "A user credential cannot be altered twice in the same request",
        )
    iterations = getattr(change, "iterations", MIN_ITERATIONS)
    if iterations < MIN_ITERATIONS:
        return ErrorCode.unacceptable_credential, "Too few iterations"
    if iterations > MAX_ITERATIONS:
        return ErrorCode.unacceptable_credential, "Too many iterations"
    return None


def _response(context: RequestContext, users: Iterable[tuple[str, ErrorCode, str | None]]) -> Any:
    return context.make(
        "AlterUserScramCredentialsResponse",
        results=tuple(
            context.make(
                "AlterUserScramCredentialsResult", user=user, error_code=error, error_message=message
            )
            for user, error, message in users
        ),
    )

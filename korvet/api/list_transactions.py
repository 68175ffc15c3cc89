"""ListTransactions (key 66), versions 0-2 (KIP-664).

Lists the transactional IDs that this broker coordinates. v1 filters by duration (KIP-994), v2 by a pattern
that must match the whole ID (KIP-1152).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.coordinator.expressions import select
from korvet.groups.consumer.automaton import InvalidRegex
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.transactions.messages import ListRequest
from korvet.transactions.shard import unknown_states

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_ANY_DURATION: Final = -1


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no transactions."""
    del request
    return context.make(
        "ListTransactionsResponse", error_code=error, unknown_state_filters=(), transaction_states=()
    )


@api(66, "ListTransactions", (0, 2), refuse=refuse)
async def list_transactions(context: RequestContext, request: Any) -> Any:
    """Those that pass all filters."""
    asked = ListRequest(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        getattr(request, "duration_filter", _ANY_DURATION),
    )
    error, listed = await context.services.transactions.list_transactions(asked)
    found = {
        each.transactional_id: each
        async for each in sliced(listed)
        if context.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id)
    }
    pattern = getattr(request, "transactional_id_pattern", None)
    if pattern:
        # Only what the client may see is compared, since that can take long.
        try:
            found = {name: found[name] for name in await select(pattern, found)}
        except InvalidRegex:
            return refuse(context, request, ErrorCode.invalid_regular_expression)
    return context.make(
        "ListTransactionsResponse",
        error_code=error,
        unknown_state_filters=unknown_states(request.state_filters),
        transaction_states=tuple(
            context.make(
                "TransactionState",
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state,
            )
            for each in found.values()
        ),
    )

"""ListTransactions (key 66), versions 0-2 (KIP-664): the transactional ids that this broker coordinates.

v1 filters by duration (KIP-994), v2 by a pattern (KIP-1152), which has to match the whole id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.groups.consumer.regex import InvalidRegex, compile_regex
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.transactions.messages import ListRequest
from korvet.transactions.shard import unknown_states

if TYPE_CHECKING:
    from korvet.api.context import RequestContext

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
    pattern = getattr(request, "transactional_id_pattern", None)
    try:
        asked = ListRequest(
            frozenset(request.state_filters),
            frozenset(request.producer_id_filters),
            getattr(request, "duration_filter", _ANY_DURATION),
            compile_regex(pattern) if pattern else None,
        )
    except InvalidRegex:
        return refuse(context, request, ErrorCode.invalid_regular_expression)
    error, listed = await context.services.transactions.list_transactions(asked)
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
            for each in listed
            if context.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id)
        ),
    )

"""How old clients are told that a newer producer has taken their place (KIP-588)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode


def fencing_error(error: ErrorCode, version: int, since: int) -> ErrorCode:
    """PRODUCER_FENCED, which an API has since that version, is INVALID_PRODUCER_EPOCH before."""
    if error is ErrorCode.producer_fenced and version < since:
        return ErrorCode.invalid_producer_epoch
    return error

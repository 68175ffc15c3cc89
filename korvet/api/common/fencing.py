"""The error for old clients whose producer was fenced by a newer one (KIP-588)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode


def fencing_error(error: ErrorCode, version: int, since: int) -> ErrorCode:
    """PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH in versions before `since`."""
    if error is ErrorCode.producer_fenced and version < since:
        return ErrorCode.invalid_producer_epoch
    return error

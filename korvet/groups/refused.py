"""The refusal of a request of the newer protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode


class Refused(Exception):
    """A request that is answered with an error and changes nothing."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message

"""The errors of the data source, with messages for its user."""

from __future__ import annotations


class SourceError(ValueError):
    """Something the user asked of the korvet source can't be done; the message says what and what to do."""


class DataLoss(SourceError):
    """Records that should have been read are gone from Redis."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. To read what is left, set failOnDataLoss=false")

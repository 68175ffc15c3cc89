"""The errors of the data source, with messages for its user."""

from __future__ import annotations


class SourceError(ValueError):
    """A request to the source that can't be fulfilled. The message states the problem and a remedy."""


class DataLoss(SourceError):
    """Records that should have been read are gone from Redis."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. To read what is left, set failOnDataLoss=false")

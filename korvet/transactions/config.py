"""The settings of the transaction coordinator; the comments name Kafka's broker settings of the same
meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from korvet.config.settings import Config


class TransactionConfig(msgspec.Struct, frozen=True):
    """Limits of transactions and of what is remembered of transactional ids."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 7 * 24 * 3_600_000  # transactional.id.expiration.ms
    expiration_check_interval_ms: int = 3_600_000  # ...remove.expired.transaction.cleanup.interval.ms

    @classmethod
    def from_settings(cls, settings: Config) -> TransactionConfig:
        """The part of the broker's settings that is about transactions."""
        return cls(
            max_timeout_ms=settings.transaction_max_timeout_ms,
            id_expiration_ms=settings.transactional_id_expiration_ms,
        )

"""The settings of the transaction coordinator; comments name Kafka's broker settings of the same meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from korvet.config.settings import Config


class TransactionConfig(msgspec.Struct, frozen=True):
    """Limits of transactions, and the expiry of transactional ids."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 7 * 24 * 3_600_000  # transactional.id.expiration.ms
    expiration_check_interval_ms: int = 3_600_000  # ...remove.expired.transaction.cleanup.interval.ms

    @classmethod
    def from_settings(cls, settings: Config) -> TransactionConfig:
        """Take the settings that concern transactions from the broker's settings."""
        return cls(
            max_timeout_ms=settings.transaction_max_timeout_ms,
            id_expiration_ms=settings.transactional_id_expiration_ms,
        )

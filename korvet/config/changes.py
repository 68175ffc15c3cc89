"""Changes of configs: Kafka's four operations (KIP-339), for all kinds of resources."""

from __future__ import annotations

import enum

import msgspec


class ConfigOperation(enum.IntEnum):
    """The operation on one config (AlterConfigOp)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(msgspec.Struct, frozen=True):
    """One operation on one config. DELETE ignores the value."""

    name: str
    operation: ConfigOperation
    value: str


def changed_list(change: ConfigChange, now: str) -> str:
    """The comma-separated list `now` after APPEND or SUBTRACT."""
    parts = [part.strip() for part in now.split(",") if part.strip()]
    for part in (part.strip() for part in change.value.split(",")):
        if change.operation is ConfigOperation.APPEND:
            parts += [part] if part not in parts else []
        elif part in parts:
            parts.remove(part)
    return ",".join(parts)

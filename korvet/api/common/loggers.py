"""The levels of korvet's loggers, by Kafka's names (KIP-412). They last until the broker ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from korvet.config.changes import ConfigOperation
from korvet.topics.errors import InvalidTopicConfig, InvalidTopicRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = "root"
_OURS: Final = "korvet"
# Below Python's DEBUG.
_TRACE: Final = 5
_LEVELS: Final[Mapping[str, int]] = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": _TRACE,
    "WARN": logging.WARNING,
}


def names() -> list[str]:
    """The root logger, and all loggers of korvet with their parents."""
    known = logging.root.manager.loggerDict
    return [ROOT, *sorted(name for name in known if name == _OURS or name.startswith(f"{_OURS}."))]


def level_of(name: str) -> str:
    """The level from which a logger's messages are logged."""
    level = _logger(name).getEffectiveLevel()
    fitting = [text for text, least in _LEVELS.items() if least >= level]
    return min(fitting, key=_LEVELS.__getitem__, default="FATAL")


def alter(changes: list[tuple[str, int, str]], *, validate_only: bool) -> None:
    """Set or remove the levels of loggers: all or none. Each change has a name, an operation and a level.

    Raises InvalidTopicRequest and InvalidTopicConfig, in Kafka's words.
    """
    for change in changes:
        _check(*change)
    if not validate_only:
        for name, operation, level in changes:
            _logger(name).setLevel(logging.NOTSET if operation == ConfigOperation.DELETE else _LEVELS[level])


def _check(name: str, operation: int, level: str) -> None:
    if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        names_of = {each.value: f"{each.name} operation" for each in ConfigOperation}
        said = names_of.get(operation, f"Unknown operation type {operation}")
        raise InvalidTopicRequest(f"{said} is not allowed for the BROKER_LOGGER resource")
    if name not in names():
        raise InvalidTopicConfig(f"Logger {name} does not exist!")
    if operation == ConfigOperation.DELETE:
        if name == ROOT:
            raise InvalidTopicRequest("Removing the log level of the root logger is not allowed")
    elif level not in _LEVELS:
        raise InvalidTopicConfig(
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. Valid log "
            f"levels are {', '.join(_LEVELS)}"
        )


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)

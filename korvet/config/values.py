"""Values of settings as text: parsed with the messages that Kafka gives, and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import inspect

from korvet.config.errors import ConfigError
from korvet.config.fields import INT32_MAX, INT64_MAX
from korvet.config.kinds import ConfigType, shape_of, type_of

if TYPE_CHECKING:
    from korvet.config.keys import Setting

_NUMBERS: Final = {ConfigType.INT: INT32_MAX, ConfigType.LONG: INT64_MAX}
_BOOLEANS: Final = {"true": True, "false": False}


def text_of(value: object) -> str:
    """The text of a setting's value."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def whole_number(text: str) -> int:
    """A whole number as Kafka reads it: without the underscores that Python allows between digits. Raises
    ValueError.
    """
    return int(_without_underscores(text))


def decimal_number(text: str) -> float:
    """A decimal number, see `whole_number`. Raises ValueError."""
    return float(_without_underscores(text))


def _without_underscores(text: str) -> str:
    if "_" in text:
        raise ValueError("a number has no underscores")
    return text


def parse_value(setting: Setting, name: str, text: str) -> object:
    """The value of a setting; `name`: the key that the request gives. Raises ConfigError."""
    stripped = text.strip()
    try:
        return _parse(setting, stripped)
    except ValueError as error:
        raise ConfigError(f"Invalid value {stripped} for configuration {name}: {error}") from None


def _parse(setting: Setting, text: str) -> object:
    shape, kind = shape_of(setting), type_of(setting)
    if kind is ConfigType.BOOLEAN:
        if text.lower() not in _BOOLEANS:
            raise ValueError("Expected value to be either true or false")
        return _BOOLEANS[text.lower()]
    if kind in _NUMBERS:
        return _number(shape, _whole(text, kind))
    if kind is ConfigType.DOUBLE:
        try:
            number = decimal_number(text)
        except ValueError:
            raise ValueError("Not a number of type DOUBLE") from None
        return _number(shape, number)
    if isinstance(shape, inspect.LiteralType) and text not in shape.values:
        raise ValueError(f"String must be one of: {', '.join(map(str, shape.values))}")
    if getattr(shape, "min_length", None) and not text:
        raise ValueError("String must be non-empty")
    return text


def _whole(text: str, kind: ConfigType) -> int:
    most = _NUMBERS[kind]
    try:
        number = whole_number(text)
    except ValueError:
        number = most + 1
    if not -most - 1 <= number <= most:
        raise ValueError(f"Not a number of type {kind.name}")
    return number


def _number(shape: inspect.Type, number: float) -> float:
    if isinstance(shape, inspect.LiteralType):
        if number not in shape.values:
            raise ValueError(f"Value must be one of: {', '.join(map(str, shape.values))}")
        return number
    assert isinstance(shape, inspect.IntType | inspect.FloatType)
    # A comparison with NaN is false.
    if shape.ge is not None and not number >= shape.ge:
        raise ValueError(f"Value must be at least {shape.ge}")
    if shape.le is not None and number > shape.le:
        raise ValueError(f"Value must be no more than {shape.le}")
    return number

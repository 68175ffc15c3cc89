"""Options of the commands, each declared once: a field of a class, with flag, variable, default and help."""

from __future__ import annotations

from dataclasses import field, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from korvet.spark.source.options import FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable

_DECLARE = "declare"


def flag(*names: str, default: Any = None, **declared: Any) -> Any:
    """Declare a field as an option of the command line, by the arguments of click.option."""
    if default is not None:
        declared["default"] = default
    return field(
        default=default, metadata={_DECLARE: lambda field_name: click.option(*names, field_name, **declared)}
    )


def flag_of(option: str, default: Any = None, **more: Any) -> Any:
    """Declare a field as the flag of an option of the source."""
    found = FLAGS[option]
    declared = {"metavar": found.metavar, "envvar": found.variable, "help": found.help}
    return flag(found.name, default=default, **declared, **more)


def argument(default: Any, **declared: Any) -> Any:
    """Declare a field as an argument of the command line, by the arguments of click.argument."""
    return field(
        default=default, metadata={_DECLARE: lambda field_name: click.argument(field_name, **declared)}
    )


def with_options(kind: type, parameter: str) -> Callable[[Callable[..., Any]], Any]:
    """Add the options that a class declares. The command gets them as one parameter, an instance of it."""
    declared = fields(kind)

    def with_declared(command: Callable[..., Any]) -> Any:
        @wraps(command)
        def gathered(**given: Any) -> Any:
            values = {each.name: given.pop(each.name) for each in declared}
            return command(**{parameter: kind(**values)}, **given)

        found: Any = gathered
        for each in reversed(declared):
            found = each.metadata[_DECLARE](each.name)(found)
        return found

    return with_declared

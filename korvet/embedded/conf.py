"""The configuration file of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def conf(pairs: Mapping[str, str]) -> str:
    """Returns the lines of directives, whose values may contain any characters but line breaks."""
    return "".join(f"{key} {_quoted(value)}\n" for key, value in pairs.items())


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

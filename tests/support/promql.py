"""What a PromQL expression reads: names of metrics and of labels."""

from __future__ import annotations

import re
from typing import NamedTuple

# Words of the language; names of functions and aggregations are followed by a parenthesis.
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_LABEL_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_STRINGS = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_MATCHERS = re.compile(r"\{([^}]*)\}")
_RANGES = re.compile(r"\[[^\]]*\]")
_NAMES = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)(?!\w*\s*\()")


class Reads(NamedTuple):
    """Names in an expression."""

    metrics: set[str]
    labels: set[str]


def reads(expression: str) -> Reads:
    """Returns the names of the metrics and labels that an expression reads.

    The expression is correct, as promtool has found; `label_replace` and `label_join` are not understood.
    """
    text = _STRINGS.sub('""', expression)
    labels: set[str] = set()
    for matchers in _MATCHERS.findall(text):
        labels |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    text = _RANGES.sub("", _MATCHERS.sub("", text))
    for names in _LABEL_LISTS.findall(text):
        labels |= {name.strip() for name in names.split(",") if name.strip()}
    text = _LABEL_LISTS.sub("", text)
    return Reads({name for name in _NAMES.findall(text) if name.lower() not in _WORDS}, labels)

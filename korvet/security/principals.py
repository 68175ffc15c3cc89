"""Principals: the names of clients for the authorizer, and the rules that make them from the distinguished
names of certificates (KIP-371).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANONYMOUS: Final = "User:ANONYMOUS"

_RULE: Final = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)


class PrincipalRule(NamedTuple):
    """One rule of `ssl.principal.mapping.rules`; the pattern None matches every name and keeps it
    unchanged.
    """

    pattern: re.Pattern[str] | None
    replacement: str
    change_case: Callable[[str], str]

    def apply(self, name: str) -> str | None:
        """The short name; None if the rule does not match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        return self.change_case(
            _group_reference.sub(lambda ref: found.group(int(ref[1])) or "", self.replacement)
        )


_group_reference: Final = re.compile(r"\$(\d)")


class PrincipalMapper:
    """Maps distinguished names to principals by `ssl.principal.mapping.rules`."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        """Raises ValueError for rules that cannot be parsed."""
        self._rules = tuple(_parse_rules(rules))

    def principal(self, distinguished_name: str) -> str:
        """The principal by the first rule that matches. Raises ValueError if no rule matches."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return f"User:{name}"
        raise ValueError(f"no rule of ssl.principal.mapping.rules applies to {distinguished_name}")


def _parse_rules(text: str) -> Iterator[PrincipalRule]:
    position = 0
    text = text.strip() or "DEFAULT"
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(f"expected DEFAULT or RULE:pattern/replacement/[LU] at {text[position:]!r}")
        position = found.end()
        rest = text[position:].lstrip()
        if rest and not rest.startswith(","):
            raise ValueError(f"expected a comma at {rest!r}")
        position = len(text) - len(rest[1:].lstrip())
        yield _rule(found)


def _rule(found: re.Match[str]) -> PrincipalRule:
    default, pattern, replacement, case = found.groups()
    if default:
        return PrincipalRule(None, "", str)
    try:
        compiled = re.compile(pattern.replace(r"\/", "/"))
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is no regular expression: {error}") from error
    replaced = replacement.replace(r"\/", "/")
    highest = max(map(int, _group_reference.findall(replaced)), default=0)
    if highest > compiled.groups:
        raise ValueError(f"{replacement!r} refers to group {highest}, which {pattern!r} does not have")
    return PrincipalRule(compiled, replaced, {"L": str.lower, "U": str.upper}.get(case, str))

"""When a group needs attention: limits of waiting, unread records and silence, by group and topic.

A TOML file has defaults at its top, and rules for groups and topics whose names match shell patterns:

    max_wait = "5m"
    max_unread = 100_000
    slo_target = 0.99

    [[rule]]
    group = "billing-*"
    topic = "orders"
    max_wait = "30s"
    severity = "critical"

For each limit and for the target, the first rule counts that matches and sets it, else the default.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from typing import TYPE_CHECKING, Any

from korvet.spark.tables.questions import Objectives

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NOTICE, WARNING, CRITICAL = "notice", "warning", "critical"
MAX_WAIT, MAX_UNREAD, MAX_COMMIT_AGE = "max_wait", "max_unread", "max_commit_age"
LIMITS = (MAX_WAIT, MAX_UNREAD, MAX_COMMIT_AGE)
OFF = "off"
SLO_TARGET = "slo_target"
# The defaults of the question slo_days are those of a report, too.
_OBJECTIVES = Objectives()
_RULE = "rule"
_DEFAULT_KEYS = (*LIMITS, SLO_TARGET, "severity", _RULE)
_RULE_KEYS = ("group", "topic", *LIMITS, SLO_TARGET, "severity", "ignore")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|min|m|h|d)")
_DURATION_FORM = 'use a number with ms, s, m, h or d, for example "5m"'
# Lines of a TOML file: the head of a rule, a key or the head of a table, and any head.
_RULE_LINE = re.compile(r"\s*\[\[\s*[\"']?rule[\"']?\s*\]\]")
_KEY_LINE = re.compile(r"\s*\[{0,2}\s*[\"']?([\w-]+)[\"']?\s*[=.\]]")
_TABLE_LINE = re.compile(r"\s*\[")


class ThresholdError(ValueError):
    """A threshold or its file is invalid. The message has the file, its line and the key."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit in ms or records, None for no limit, and the severity of exceeding it."""

    value: int | None
    severity: str = WARNING


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a group and topic. ignored: what happens there needs no attention."""

    max_wait: Limit
    max_unread: Limit
    max_commit_age: Limit
    ignored: bool = False


@dataclass(frozen=True)
class Rule:
    """What is set for groups and topics that match shell patterns. Absent limits are not set.

    slo_target: of a group, the fraction of the time in which it meets its limit of waiting.
    """

    group: str = "*"
    topic: str = "*"
    limits: Mapping[str, Limit] = field(default_factory=dict)
    ignored: bool | None = None
    slo_target: float | None = None

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        return re.compile(translate(self.group)), re.compile(translate(self.topic))

    def matches(self, group: str, topic: str | None) -> bool:
        """Return whether the rule is for this group and topic; without a topic, for all of its topics."""
        of_group, of_topic = self._patterns
        if of_group.match(group) is None:
            return False
        return self.topic == "*" if topic is None else of_topic.match(topic) is not None


_DEFAULTS = {MAX_WAIT: Limit(_OBJECTIVES.max_lag_ms), MAX_UNREAD: Limit(None), MAX_COMMIT_AGE: Limit(None)}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The rules in order, and the limits that count where no rule sets one."""

    rules: Sequence[Rule] = ()
    defaults: Mapping[str, Limit] = field(default_factory=lambda: dict(_DEFAULTS))
    default_slo_target: float = _OBJECTIVES.target

    def slo_target(self, group: str) -> float:
        """Return the fraction of the time in which a group is to meet its limit of waiting."""
        targets = (rule.slo_target for rule in self.rules if rule.matches(group, None))
        return next((target for target in targets if target is not None), self.default_slo_target)

    def limits(self, group: str, topic: str | None = None) -> Limits:
        """Return the limits of a topic in a group, or of the group as a whole."""
        matching = [rule for rule in self.rules if rule.matches(group, topic)]
        chosen = {
            name: next((rule.limits[name] for rule in matching if name in rule.limits), self.defaults[name])
            for name in LIMITS
        }
        ignored = next((rule.ignored for rule in matching if rule.ignored is not None), False)
        return Limits(**chosen, ignored=ignored)

    def with_defaults(self, **values: int | None) -> Thresholds:
        """Return them with other defaults, in ms or records; a default keeps its severity."""
        changed = {name: replace(self.defaults[name], value=value) for name, value in values.items()}
        return replace(self, defaults={**self.defaults, **changed})


def parse_duration(text: str) -> int:
    """Return a duration such as `90s`, `5m` or `2h` in ms. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration: {_DURATION_FORM}")
    return int(found[1]) * _UNITS_MS[found[2]]


def parse_limit(name: str, value: object) -> int | None:
    """Return a limit in ms or records, or None for `off`. Raises ValueError."""
    if value == OFF:
        return None
    if name == MAX_UNREAD:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f'{value!r} is not a number of records: use an integer from 0 on, or "{OFF}"')
        return value
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is not a duration: {_DURATION_FORM}, or "{OFF}"')
    return parse_duration(value)


def read_thresholds(file: Path) -> Thresholds:
    """Return the thresholds of a TOML file. Raises ThresholdError, or OSError if it can't be read."""
    try:
        text = file.read_text("utf-8")
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # The message of a TOML error ends with its line and column.
        raise ThresholdError(f"{file}: {error}") from error
    return _Parser(file, text).thresholds(document)


class _Parser:
    """Turns a parsed file into thresholds, with the place of every error."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._lines = text.splitlines()

    def thresholds(self, document: Mapping[str, Any]) -> Thresholds:
        self._check_keys(document, _DEFAULT_KEYS, None)
        severity = self._severity(document, None, WARNING)
        given = self._limits(document, None, severity)
        defaults = {name: replace(limit, severity=severity) for name, limit in _DEFAULTS.items()}
        target = self._target(document, None)
        rules = document.get(_RULE, [])
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise self._error(None, _RULE, "write every rule as a table [[rule]]")
        parsed = tuple(self._rule(rule, number, severity) for number, rule in enumerate(rules))
        return Thresholds(parsed, {**defaults, **given}, _OBJECTIVES.target if target is None else target)

    def _rule(self, rule: Mapping[str, Any], number: int, severity: str) -> Rule:
        self._check_keys(rule, _RULE_KEYS, number)
        patterns = {}
        for name in ("group", "topic"):
            patterns[name] = rule.get(name, "*")
            if not isinstance(patterns[name], str):
                raise self._error(number, name, f"{patterns[name]!r} is not a pattern: use a string")
        ignored = rule.get("ignore")
        if ignored is not None and not isinstance(ignored, bool):
            raise self._error(number, "ignore", f"{ignored!r} is neither true nor false")
        limits = self._limits(rule, number, self._severity(rule, number, severity))
        target = self._target(rule, number)
        if target is not None and patterns["topic"] != "*":
            raise self._error(number, SLO_TARGET, "the target is of a group: leave out topic")
        if not limits and ignored is None and target is None:
            wanted = ", ".join((*LIMITS, SLO_TARGET))
            raise self._error(number, None, f"the rule sets nothing: give {wanted} or ignore")
        return Rule(**patterns, limits=limits, ignored=ignored, slo_target=target)

    def _limits(self, table: Mapping[str, Any], number: int | None, severity: str) -> dict[str, Limit]:
        found = {}
        for name in LIMITS:
            if name in table:
                try:
                    found[name] = Limit(parse_limit(name, table[name]), severity)
                except ValueError as error:
                    raise self._error(number, name, str(error)) from error
        return found

    def _target(self, table: Mapping[str, Any], number: int | None) -> float | None:
        target = table.get(SLO_TARGET)
        if target is not None and not (isinstance(target, float) and 0 < target < 1):
            raise self._error(number, SLO_TARGET, f"{target!r} is not a fraction between 0 and 1")
        return target

    def _severity(self, table: Mapping[str, Any], number: int | None, default: str) -> str:
        severity = table.get("severity", default)
        if severity not in (NOTICE, WARNING, CRITICAL):
            raise self._error(number, "severity", f"{severity!r} is none of {NOTICE}, {WARNING}, {CRITICAL}")
        return str(severity)

    def _check_keys(self, table: Mapping[str, Any], known: Sequence[str], number: int | None) -> None:
        for name in table:
            if name not in known:
                raise self._error(number, name, f"unknown key; keys are {', '.join(known)}")

    def _error(self, number: int | None, key: str | None, problem: str) -> ThresholdError:
        where = "" if number is None else f" of rule {number + 1}"
        place = f"{self._file}, line {self._line(number, key)}"
        named = f"key {key}{where}" if key is not None else f"rule {(number or 0) + 1}"
        return ThresholdError(f"{place}, {named}: {problem}")

    def _line(self, number: int | None, key: str | None) -> int:
        """The line of a key in the top table or in a rule; of the rule's head if the key is elsewhere."""
        rules, in_top, head = -1, True, 1
        for at, line in enumerate(self._lines, 1):
            if _RULE_LINE.match(line):
                rules, in_top = rules + 1, False
                head = at if rules == number or key == _RULE else head
            elif _TABLE_LINE.match(line):
                in_top = False
                if number is None and _name_in(line) == key:
                    return at
            elif (in_top if number is None else rules == number) and _name_in(line) == key:
                return at
        return head


def _name_in(line: str) -> str | None:
    """The key that a line sets, or the name of the table that it begins."""
    found = _KEY_LINE.match(line)
    return found[1] if found else None

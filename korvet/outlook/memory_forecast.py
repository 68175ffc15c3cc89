"""How much memory the records of a server will need, and when it is full. No I/O: brokers and `korvet doctor`
ask Redis (korvet_rate, INFO memory).

A partition grows at the rate of the last hour until it has what its retention keeps. The server needs more
than the payload: what it has now for each byte of payload, it will have for each further one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.outlook.findings import FAULT, OK, WARNING, Finding
from korvet.redis.info import used_memory
from korvet.redis.refusals import EFFECTS, NEARLY_FULL_PART, Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PERIOD_MS: Final = 3_600_000
"""The time over which rates are measured."""
# Rates of younger partitions are those of a partition of this age: one batch is no rate.
_LEAST_AGE_MS: Final = 60_000
# The share of the growth that may come from partitions younger than PERIOD_MS in a forecast that can alarm.
_YOUNG_SHARE: Final = 0.1
# A partition that wants more than so many times what it has is not yet at the end of its growth.
_GROWING: Final = 1.1
# Bytes of memory for each byte of payload (1.5 at 100 B, 1.2 at 1 KB), until there is enough to measure it.
_USUAL_FACTOR: Final = 1.5
_TELLING_BYTES: Final = 16 << 20
# Other data on the server would count as overhead of ours.
_LARGEST_FACTOR: Final = 8.0
_NAMED_TOPICS: Final = 3
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_ADVICE: Final = (
    "Set retention.bytes, a shorter retention.ms, or create topics with storage.layout=batch and compress"
)


class Keeping(NamedTuple):
    """What retention keeps of each partition of a topic; None: no limit."""

    retention_ms: int | None
    retention_bytes: int | None
    grows: bool = True
    """Whether appends make a partition larger; unknown with compaction, which is then left out."""


class Growth(NamedTuple):
    """A partition, or several of a topic on one server."""

    topic: str
    live_bytes: int
    """Payload that is there."""
    bytes_per_s: float
    """Payload appended in a second."""
    wanted_bytes: float
    """Payload that will be there: inf if nothing ends the growth."""
    age_ms: int
    """The time over which the rate was measured, at most PERIOD_MS."""
    keeping: Keeping


class TopicNeed(NamedTuple):
    """The memory that a topic needs, and why."""

    topic: str
    needed_bytes: float
    bytes_per_s: float
    retention_ms: int | None
    """None if retention.bytes ends the growth of each partition, or nothing does."""


class Forecast(NamedTuple):
    """The memory of one server."""

    used_bytes: int
    limit_bytes: int
    """maxmemory, or the machine's memory."""
    needed_bytes: float
    """What the server will use once each partition has what retention keeps; inf if that is never so."""
    full_s: float
    """Time until the limit is reached; inf if it is not."""
    age_ms: int
    """The time over which most of the growth was measured."""
    topics: tuple[TopicNeed, ...] = ()
    """The topics that need most first."""
    is_limited: bool = True
    """Whether the server refuses writes at the limit, because it is maxmemory."""

    @property
    def is_short(self) -> bool:
        """Whether more than the limit is needed, by rates that were measured for long enough."""
        return self.needed_bytes > self.limit_bytes and self.age_ms >= PERIOD_MS


def growth_of(topic: str, keeping: Keeping, reply: Sequence[int], now_ms: int) -> Growth:
    """The growth of a partition. `reply`: of korvet_rate with the time `now_ms` - PERIOD_MS."""
    appended_bytes, since_ms, live_bytes, _ = reply
    age_ms = min(max(now_ms - since_ms, _LEAST_AGE_MS), PERIOD_MS)
    bytes_per_s = appended_bytes * 1000 / age_ms if keeping.grows else 0.0
    return Growth(topic, live_bytes, bytes_per_s, _wanted(keeping, live_bytes, bytes_per_s), age_ms, keeping)


def _wanted(keeping: Keeping, live_bytes: int, bytes_per_s: float) -> float:
    if not bytes_per_s:
        return live_bytes
    by_time = math.inf if keeping.retention_ms is None else bytes_per_s * keeping.retention_ms / 1000
    by_size = math.inf if keeping.retention_bytes is None else keeping.retention_bytes
    return max(min(by_time, by_size), live_bytes)


def _is_kept_by_size(growth: Growth) -> bool:
    limit_bytes = growth.keeping.retention_bytes
    return not growth.bytes_per_s or (limit_bytes is not None and growth.wanted_bytes >= limit_bytes)


def forecast(info: Mapping[str, str], growths: Sequence[Growth], machine_bytes: int) -> Forecast | None:
    """The forecast of a server; None if it does not report its memory. `info`: its INFO memory. `growths`: of
    its partitions. `machine_bytes`: the memory of its machine; 0 if that is what the server reports.
    """
    memory = used_and_limit(info, machine_bytes)
    if memory is None:
        return None
    used_bytes, limit_bytes = memory
    factor = memory_factor(_number(info, "used_memory_dataset"), sum(each.live_bytes for each in growths))
    growing = [each for each in growths if each.bytes_per_s]
    missing = sum(each.wanted_bytes - each.live_bytes for each in growths)
    full_s = _full_s((limit_bytes - used_bytes) / factor, growing)
    total = sum(each.bytes_per_s for each in growing)
    young = [
        each for each in growing if each.age_ms < PERIOD_MS and each.wanted_bytes > _GROWING * each.live_bytes
    ]
    is_young = sum(each.bytes_per_s for each in young) > _YOUNG_SHARE * total
    age_ms = min(each.age_ms for each in young) if is_young else PERIOD_MS
    needed_bytes = used_bytes + factor * missing
    needs, is_limited = _needs(growths, factor), _number(info, "maxmemory") > 0
    return Forecast(used_bytes, limit_bytes, needed_bytes, full_s, age_ms, needs, is_limited)


def used_and_limit(info: Mapping[str, str], machine_bytes: int = 0) -> tuple[int, int] | None:
    """The memory in use and its limit, see `forecast`; None if the server does not report them."""
    used_bytes = used_memory(info)
    limit_bytes = _number(info, "maxmemory") or machine_bytes or _number(info, "total_system_memory")
    return (used_bytes, limit_bytes) if used_bytes and limit_bytes else None


def _number(info: Mapping[str, str], field: str) -> int:
    return int(info.get(field, "0"))


def memory_factor(dataset_bytes: int, live_bytes: int) -> float:
    """Bytes of memory for each byte of payload, of a server whose data take `dataset_bytes`."""
    if live_bytes < _TELLING_BYTES:
        return _USUAL_FACTOR
    return min(max(dataset_bytes / live_bytes, 1.0), _LARGEST_FACTOR)


def _full_s(free_bytes: float, growing: Iterable[Growth]) -> float:
    """The time until `free_bytes` of payload are added: each partition grows until it has what it wants."""
    if free_bytes <= 0:
        return 0.0
    ends = sorted(
        ((each.wanted_bytes - each.live_bytes) / each.bytes_per_s, each.bytes_per_s) for each in growing
    )
    rate, at_s = sum(bytes_per_s for _, bytes_per_s in ends), 0.0
    for end_s, bytes_per_s in ends:
        if free_bytes <= rate * (end_s - at_s):
            return at_s + free_bytes / rate
        free_bytes -= rate * (end_s - at_s)
        rate, at_s = rate - bytes_per_s, end_s
    return math.inf


def _needs(growths: Iterable[Growth], factor: float) -> tuple[TopicNeed, ...]:
    by_topic: dict[str, list[Growth]] = defaultdict(list)
    for each in growths:
        by_topic[each.topic].append(each)
    needs = [
        TopicNeed(
            topic,
            factor * sum(each.wanted_bytes for each in found),
            sum(each.bytes_per_s for each in found),
            None if all(map(_is_kept_by_size, found)) else found[0].keeping.retention_ms,
        )
        for topic, found in by_topic.items()
    ]
    return tuple(sorted(needs, key=lambda need: (-need.needed_bytes, -need.bytes_per_s, need.topic)))


def memory_findings(forecasts: Mapping[str, Forecast], now_ms: int) -> list[Finding]:
    """The forecasts in words, by server, and whether it is full now."""
    many = len(forecasts) > 1
    return [
        Finding(f"memory, {place}" if many else "memory", *_finding(each, now_ms))
        for place, each in forecasts.items()
    ]


def _finding(found: Forecast, now_ms: int) -> tuple[str, str]:
    """State and text."""
    text = describe(found, now_ms)
    if not found.is_limited or found.used_bytes < NEARLY_FULL_PART * found.limit_bytes:
        return WARNING if found.is_short else OK, text
    is_full = found.used_bytes >= found.limit_bytes
    effect = EFFECTS[Cause.MEMORY if is_full else Cause.NEARLY_FULL]
    advice = "raise maxmemory, lower retention, or delete topics or records"
    return FAULT if is_full else WARNING, f"{text}; {effect}: {advice}"


def usage(used_bytes: int, limit_bytes: int) -> Forecast:
    """The forecast of a server with a maxmemory if nothing is known of growth."""
    return Forecast(used_bytes, limit_bytes, used_bytes, math.inf, PERIOD_MS)


def describe(found: Forecast, now_ms: int) -> str:
    """The forecast in words."""
    parts = [f"{_size(found.used_bytes)} of {_size(found.limit_bytes)}{_when_full(found, now_ms)}"]
    growing = [need for need in found.topics if need.bytes_per_s]
    if growing:
        named = ", ".join(map(_need, growing[:_NAMED_TOPICS]))
        more = f", {len(growing) - _NAMED_TOPICS} more" if len(growing) > _NAMED_TOPICS else ""
        ending = "no end" if math.isinf(found.needed_bytes) else _size(found.needed_bytes)
        parts.append(f"Retention needs {ending}: {named}{more}")
    if found.is_short:
        parts.append(_ADVICE)
    return ". ".join(parts)


def _when_full(found: Forecast, now_ms: int) -> str:
    if math.isinf(found.full_s):
        return ""
    if not found.full_s:
        return "; full"
    # A time in years has no day of the week.
    at = datetime.fromtimestamp(now_ms / 1000 + min(found.full_s, 10 * 365 * _DAY_S), UTC)
    day = f"{at:%a %H:%M}" if found.full_s < 7 * _DAY_S else f"{at:%Y-%m-%d}"
    if found.age_ms < PERIOD_MS:
        measured = f"the rate of {max(found.age_ms // 60_000, 1)} min, which is short for a forecast,"
    else:
        measured = "the last hour's rate"
    return f"; at {measured} full in {_duration(found.full_s)} ({day} UTC)"


def _need(need: TopicNeed) -> str:
    rate = f"{_size(need.bytes_per_s)}/s"
    if math.isinf(need.needed_bytes):
        return f"{need.topic} without end ({rate}, no retention)"
    if need.retention_ms is None:
        return f"{need.topic} {_size(need.needed_bytes)} (retention.bytes, {rate})"
    return f"{need.topic} {_size(need.needed_bytes)} ({_duration(need.retention_ms / 1000)} at {rate})"


def _duration(seconds: float) -> str:
    for unit_s, unit in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(size: float) -> str:
    """A number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"

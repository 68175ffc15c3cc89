"""A report's document with any number of groups, in every state and with every kind of name."""

from __future__ import annotations

import random
from typing import Any

from korvet.spark.report.page import series
from korvet.spark.report.report import SEVERITY, urgency

AS_OF_MS = 1_790_000_000_000
STEP_MS, STEPS = 900_000, 96
FROM_MS = AS_OF_MS // STEP_MS * STEP_MS - (STEPS - 1) * STEP_MS
HOSTILE = (
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "<!--",
    "{data}{script}",
    "",
    "caf\u00e9 \u2028 \u202e \U0001f600",
    "javascript:alert(1)",
    "a%2Fb#group=c&d",
)


def document(
    size: int, *, seed: int = 5, names: tuple[str, ...] = HOSTILE, left_out: int = 0
) -> dict[str, Any]:
    """The document for korvet.spark.report.page.render."""
    chance = random.Random(seed)
    groups = [
        _group(chance, names[number] if number < len(names) else f"group-{number:04}")
        for number in range(size)
    ]
    groups.sort(key=urgency)
    return {
        "title": "Consumer groups",
        "source": "redis://<b>&host:6379, keyspace {data}",
        "as_of": AS_OF_MS,
        "from": FROM_MS,
        "step": STEP_MS,
        "buckets": STEPS,
        "commits": 4_812_377,
        "unreadable": 3,
        "total": size + left_out,
        "groups": groups,
    }


def _group(chance: random.Random, name: str) -> dict[str, Any]:
    status = chance.choices(list(SEVERITY), [0, 0, 1, 1, 2, 2, 1, 3, 30])[0]
    quiet = status == "STALE"
    lag = [0 if quiet else chance.randint(0, 500) for _ in range(STEPS)]
    wait = [value * 100 for value in lag]
    commits = [0 if quiet else chance.randint(0, 40) for _ in range(STEPS)]
    client = f"client-{chance.randint(0, 20)}"
    return {
        "name": name,
        "status": status,
        "worst": "" if status in ("STALE", "OK") else f"{name} 3",
        "record_lag": lag[-1],
        "lost": 0,
        "lag_ms": wait[-1],
        "age": chance.randint(0, 60_000),
        "members": 0 if quiet else 3,
        "partitions": 6,
        "generation": 7,
        "protocol": "range",
        "expiring": 2 if quiet else 0,
        "history": [series(lag), series(wait), series(commits)],
        "topics": [name, "orders"],
        "offsets": _offsets(name, lag[-1], wait[-1]),
        "clients": [client, name],
        "inventory_total": 3,
        "inventory": _inventory(name, client),
        "rebalances_total": 4,
        "rebalances": _rebalances(),
        "anomalies_total": 1,
        "anomalies": [
            {
                "at": AS_OF_MS - STEP_MS,
                "kind": "past_end",
                "lost": None,
                "topic": name,
                "partition": 3,
                "committed": "5",
                "previous": None,
            }
        ],
    }


def _offsets(name: str, lag: int, wait_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "topic": name,
            "partition": number,
            "status": "OK",
            "committed": str(2**62 + number),
            "record_lag": lag // 6,
            "lag_ms": wait_ms,
            "commit": AS_OF_MS - 5000,
        }
        for number in range(6)
    ]


def _inventory(name: str, client: str) -> list[dict[str, Any]]:
    return [
        {
            "member": f"{client}-{number}",
            "client": client,
            "host": name,
            "instance": None,
            "assigned": "orders 0, 1",
            "first": FROM_MS,
            "last": AS_OF_MS - STEP_MS,
            "active": number < 2,
        }
        for number in range(3)
    ]


def _rebalances() -> list[dict[str, Any]]:
    return [
        {
            "at": FROM_MS + number * 20 * STEP_MS,
            "kind": "rebalanced" if number else "formed",
            "generation": number + 4,
            "members": (1, 2, 4, 3)[number],
            "joined": (1, 1, 2, 0)[number],
            "left": (0, 0, 0, 1)[number],
            "lasted": 20 * STEP_MS if number else None,
        }
        for number in range(4)
    ]

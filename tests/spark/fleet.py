"""A report's document with any number of groups, in every state and with every kind of name."""

from __future__ import annotations

import random
from typing import Any

from korvet.spark.report.alerts import KINDS
from korvet.spark.report.groups import urgency
from korvet.spark.report.page import series

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
    size: int,
    *,
    seed: int = 5,
    names: tuple[str, ...] = HOSTILE,
    left_out: int = 0,
    compared: bool = False,
    console: str | None = None,
) -> dict[str, Any]:
    """The document for korvet.spark.report.page.render."""
    chance = random.Random(seed)
    groups = [
        _group(chance, names[number] if number < len(names) else f"group-{number:04}", compared=compared)
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
        "findings": [],
        "compared_to": AS_OF_MS - 86_400_000 if compared else None,
        "gone_total": 1 if compared else 0,
        "gone": [{"name": "<i>old", "record_lag": 12, "lag_ms": 4000, "partitions": 2}] if compared else [],
        "console": console,
        "total": size + left_out,
        "groups": groups,
    }


def _group(chance: random.Random, name: str, *, compared: bool) -> dict[str, Any]:
    status = chance.choices([*KINDS, "ok"], [0, 0, 1, 1, 2, 2, 1, 1, 1, 0, 0, 1, 3, 30])[0].upper()
    quiet = status == "STALE"
    lag = [0 if quiet else chance.randint(0, 500) for _ in range(STEPS)]
    wait = [value * 100 for value in lag]
    commits = [0 if quiet else chance.randint(0, 40) for _ in range(STEPS)]
    client = f"client-{chance.randint(0, 20)}"
    return {
        "name": name,
        "status": status,
        "severity": KINDS.get(status.lower(), "ok"),
        **_alerts(name, status),
        "limit_ms": 20_000,
        "record_lag": lag[-1],
        "lost": 0,
        "lag_ms": wait[-1],
        "drain_ms": None if wait[-1] % 300 else wait[-1] * 7,
        "not_draining": int(wait[-1] % 300 == 100),
        "age": chance.randint(0, 60_000),
        "members": 0 if quiet else 3,
        "partitions": 6,
        "generation": 7,
        "protocol": "range",
        "queue": None,
        "queues": [],
        "workers": [],
        **_expiring(name, quiet=quiet),
        "slo": _service(),
        "owners_total": 60,
        "owners": _owners(name, client),
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
        **_changes(name, lag[-1], compared=compared),
    }


def _expiring(name: str, *, quiet: bool) -> dict[str, Any]:
    rows = [
        {
            "topic": name,
            "partition": number,
            "committed": str(2**62 + number),
            "at": AS_OF_MS + in_ms,
            "in": in_ms,
        }
        for number, in_ms in enumerate((-5000, 7_200_000))
    ]
    return {"expiring_total": 2, "expiring": rows} if quiet else {"expiring_total": 0, "expiring": []}


def _service() -> list[dict[str, Any]]:
    days = (("2026-09-21", 51_220_000, 0), ("2026-09-20", 35_180_000, 900_000))
    return [
        {
            "day": day,
            "attained": 1 - over_ms / measured_ms,
            "over": over_ms,
            "left": measured_ms // 100 - over_ms,
            "worst": over_ms // 3,
            "measured": measured_ms,
            "target": 0.99,
        }
        for day, measured_ms, over_ms in days
    ]


def _owners(name: str, client: str) -> list[dict[str, Any]]:
    return [
        {
            "topic": name,
            "partitions": ("0-2", "3-5", "0-5")[number],
            "client": client,
            "host": name,
            "member": f"{client}-{number}",
            "from": FROM_MS + (2 - number) * 20 * STEP_MS,
            "until": None if number < 2 else FROM_MS + 20 * STEP_MS,
            "commits": 300 * number,
        }
        for number in range(3)
    ]


def _alerts(name: str, status: str) -> dict[str, Any]:
    if status == "OK":
        return {"alerts_total": 0, "alerts": []}
    alert = {
        "severity": KINDS[status.lower()],
        "kind": status.lower(),
        "message": f"{status} in \u2068{name}\u2069 3",
    }
    return {"alerts_total": 3, "alerts": [alert, {**alert, "message": "second"}]}


def _changes(name: str, lag: int, *, compared: bool) -> dict[str, Any]:
    if not compared:
        return {"before": None, "changes_total": 0, "changes": []}
    changes = [
        {
            "topic": name,
            "partition": number,
            "change": change,
            "status_before": None if change == "new" else "STOPPED",
            "status": None if change == "gone" else "OK",
            "record_lag_before": None if change == "new" else 40,
            "record_lag": None if change == "gone" else lag,
            "lag_ms_before": None if change == "new" else 4000,
            "lag_ms": None if change == "gone" else lag * 100,
            "read": 7 if change == "kept" else None,
            "committed_before": None if change == "new" else str(2**62),
            "committed": None if change == "gone" else str(2**62 + number),
        }
        for number, change in enumerate(("kept", "new", "gone"))
    ]
    before = {"record_lag": 80, "lag_ms": 4000, "read": 7, "new": 1, "gone": 1}
    return {"before": before, "changes_total": 3, "changes": changes}


def _offsets(name: str, lag: int, wait_ms: int) -> list[dict[str, Any]]:
    return [
        {
            "topic": name,
            "partition": number,
            "status": "OK",
            "committed": str(2**62 + number),
            "record_lag": lag // 6,
            "lag_ms": wait_ms,
            "consumed": (None, 0.0, 0.25, 17.5, 12_345.6, -3.0)[number],
            "produced": (None, 0.5, 0.125, 16.0, 12_000.0, 0.0)[number],
            "drain_ms": (None, None, 81_000, 5_000, 0, None)[number],
            "not_draining": (0, 1, 0, 0, 0, 1)[number],
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
            "least": (None, 40, 12_000, 0)[number],
            "most": (None, 4_100, 12_000, 900)[number],
        }
        for number in range(4)
    ]


def queue(name: str, *, told: bool) -> dict[str, Any]:
    """A share group with two partitions, one of them unknown. told: by Redis, which knows who has records."""
    row = {
        "topic": name,
        "partition": 0,
        "status": "BEHIND",
        "start": str(2**60),
        "depth": 1234,
        "exact": True,
        "in_flight": 12 if told else None,
        "again": 7,
        "deliveries": 3,
        "dead": 2 if told else None,
        "lag_ms": 600_000,
    }
    columns = ("start", "depth", "exact", "in_flight", "again", "deliveries", "dead", "lag_ms")
    workers = [{"name": name, "is_member": False, "in_flight": 12, "idle": 3000}] if told else []
    return {
        "name": name,
        "status": "BEHIND",
        "severity": "warning",
        "alerts_total": 1,
        "alerts": [{"severity": "warning", "kind": "behind", "message": "oldest record has waited"}],
        "age": None,
        "lag_ms": 600_000,
        "record_lag": 1234,
        "history": [series([None] * STEPS)] * 2 + [series([0] * STEPS)],
        "queue": {
            "partitions": 2,
            "depth": 1234,
            "in_flight": row["in_flight"],
            "again": 7,
            "deliveries": 3,
            "dead": row["dead"],
            "workers": len(workers),
            "natives": len(workers) if told else None,
        },
        "queues": [row, {**row, **dict.fromkeys(columns), "partition": 1, "status": "UNKNOWN"}],
        "workers": workers,
    }

"""Thresholds by flag and file, the alerts that they lead to, and their JSON for schedulers."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner

from korvet.offsets.group_status import STATUSES
from korvet.spark.cli.alert_options import AlertOptions, exit_status, with_alert_options
from korvet.spark.cli.options import tell
from korvet.spark.report.alerts import FINDINGS, KINDS, PastEnd, TopicState, alerts_document, find_alerts
from korvet.spark.report.thresholds import Limit, ThresholdError, Thresholds, parse_duration, read_thresholds
from korvet.spark.session.kafka_state import OpenTransaction, Rights
from korvet.spark.tables.kafka_offsets import GRACE_MS, MAX_TRANSACTION_MS, hanging, missing, origin

NOW = 1_790_000_000_000
MINUTE = 60_000
SCHEMA = json.loads(files("korvet.spark.report").joinpath("assets", "alerts.schema.json").read_text("utf-8"))
FILE = """\
max_wait = "10m"
max_unread = 1_000

[[rule]]
group = "billing-*"
topic = "orders"
max_wait = "30s"
severity = "critical"

[[rule]]
group = "billing-*"
max_wait = "off"
max_commit_age = "1h"

[[rule]]
group = "console-consumer-[0-9]*"
ignore = true
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "thresholds.toml"
    path.write_text(text, encoding="utf-8")
    return path


def state(group: str, topic: str = "orders", status: str = "OK", **numbers: Any) -> TopicState:
    usual: dict[str, Any] = {
        "is_committed": status != "UNCOMMITTED",
        "partition": 3,
        "partitions": 1,
        "unread_records": 0,
        "wait_ms": 0,
        "lost_records": 0,
        "last_commit_ms": NOW,
    }
    return TopicState(group, topic, status, **{**usual, **numbers})


def test_the_first_rule_that_sets_a_limit_counts(tmp_path: Path) -> None:
    thresholds = read_thresholds(written(tmp_path, FILE))
    orders = thresholds.limits("billing-eu", "orders")
    assert (orders.max_wait, orders.max_unread) == (Limit(30_000, "critical"), Limit(1000))
    assert orders.max_commit_age == Limit(3_600_000)
    assert thresholds.limits("billing-eu", "refunds").max_wait == Limit(None)
    assert thresholds.limits("Billing-eu", "orders").max_wait == Limit(600_000)
    assert thresholds.limits("console-consumer-77", "orders").ignored
    assert thresholds.limits("console-consumer-77").ignored
    # A rule for one topic says nothing on the group as a whole.
    assert thresholds.limits("billing-eu").max_wait == Limit(None)
    changed = thresholds.with_defaults(max_wait=1000, max_unread=None)
    assert changed.limits("audit", "orders").max_wait == Limit(1000)
    assert changed.limits("audit", "orders").max_unread == Limit(None)
    assert changed.limits("billing-eu", "orders").max_wait == Limit(30_000, "critical")


def test_the_first_rule_that_sets_the_target_counts(tmp_path: Path) -> None:
    text = """slo_target = 0.9
        [[rule]]
        group = "billing-*"
        max_wait = "1m"
        [[rule]]
        group = "b*"
        slo_target = 0.999
        [[rule]]
        slo_target = 0.5
        group = "billing-eu"
        """
    thresholds = read_thresholds(written(tmp_path, text))
    assert [thresholds.slo_target(group) for group in ("billing-eu", "audit")] == [0.999, 0.9]
    assert read_thresholds(written(tmp_path, FILE)).slo_target("billing-eu") == 0.99


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('max_wait = "5m\n', r"thresholds.toml: .*\(at line 1, column 15\)"),
        ("\nmax_wait = 5", "line 2, key max_wait: 5 is not a duration"),
        ('max_unread = "many"', "line 1, key max_unread: 'many' is not a number of records"),
        ("max_unread = true", "line 1, key max_unread: True is not a number"),
        ('max_lag = "5m"', "line 1, key max_lag: unknown key; keys are max_wait, max_unread"),
        ('severity = "mild"', "line 1, key severity: 'mild' is none of notice, warning, critical"),
        ("severity = []", r"line 1, key severity: \[\] is none of"),
        ("max_unread = 1\n[defaults]\nmax_unread = 2", "line 2, key defaults: unknown key"),
        ("rule = 3", r"line 1, key rule: write every rule as a table \[\[rule\]\]"),
        (
            '[[rule]]\nmax_unread = 1\n[[rule]]\ngroup = "x"\n\nmax_unread = -1',
            "line 6, key max_unread of rule 2: -1",
        ),
        ('[[rule]]\nmax_unread = 1\n[[rule]]\ngroup = "x"', "line 3, rule 2: the rule sets nothing"),
        ("[[rule]]\ngroup = 3\nignore = true", "line 2, key group of rule 1: 3 is not a pattern"),
        ("slo_target = 99", "line 1, key slo_target: 99 is not a fraction between 0 and 1"),
        ("slo_target = 1.0", "line 1, key slo_target: 1.0 is not a fraction"),
        (
            '[[rule]]\ntopic = "t"\nslo_target = 0.9',
            "line 3, key slo_target of rule 1: the target is of a group",
        ),
        ('[[rule]]\nignore = "yes"', "line 2, key ignore of rule 1: 'yes' is neither true nor false"),
    ],
)
def test_an_error_in_the_file_has_its_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ThresholdError, match=message):
        read_thresholds(written(tmp_path, text))


def test_durations_have_units() -> None:
    given = {"250ms": 250, "90s": 90_000, "5m": 300_000, "5 min": 300_000, "2h": 7_200_000, "1d": 86_400_000}
    assert {text: parse_duration(text) for text in given} == given
    for text in ("", "5", "5w", "-5m", "5m 3s", "1.5h"):
        with pytest.raises(ValueError, match="is not a duration: use a number with ms, s, m, h or d"):
            parse_duration(text)


def found(states: list[TopicState], thresholds: Thresholds | None = None, **more: Any) -> list[Any]:
    usual: dict[str, Any] = {"past_ends": [], "stale_groups": [], **more}
    return find_alerts(states, thresholds=thresholds or Thresholds(), as_of_ms=NOW, **usual)


def test_lost_records_and_commits_past_the_end_need_attention() -> None:
    states = [
        state("slow", unread_records=7, wait_ms=6 * MINUTE),
        state("gone", status="LOST", lost_records=12, partitions=3),
        state("gone"),
        state("far", status="AHEAD"),
        state("back"),
    ]
    past = [PastEnd(group, "orders", 1, 2, NOW - MINUTE) for group in ("far", "back", "unknown")]
    alerts = found(states, past_ends=past, stale_groups=["old"])
    assert [(alert.severity, alert.kind, alert.group) for alert in alerts] == [
        ("critical", "lost", "gone"),
        ("critical", "ahead", "far"),
        ("warning", "behind", "slow"),
        ("warning", "past_end", "back"),
        ("notice", "stale", "old"),
    ]
    lost, _, behind, back, _ = (alert.message.replace("\u2068", "").replace("\u2069", "") for alert in alerts)
    assert lost == "missed 12 records that were deleted before it read them (orders 3 and 2 more)"
    assert behind == "first unread record has waited for 6 min, limit 5 min (orders 3)"
    assert back == "committed past the log end 2 times, last at 2026-09-21 14:12 UTC (orders 1)"


def test_limits_are_of_a_topic_in_a_group(tmp_path: Path) -> None:
    thresholds = read_thresholds(written(tmp_path, FILE))
    states = [
        # The partitions with different statuses are one topic: 600 + 500 unread records.
        state("audit", unread_records=600, status="BEHIND", wait_ms=6 * MINUTE),
        state("audit", unread_records=500, wait_ms=10 * MINUTE),
        state("audit", topic="other", unread_records=600),
        # Nobody knows where its consumer will begin.
        state("fresh", status="UNCOMMITTED", unread_records=5000, wait_ms=None),
        state("billing-eu", unread_records=1, wait_ms=30_001),
        state("billing-eu", topic="refunds", wait_ms=90 * MINUTE, last_commit_ms=NOW - 61 * MINUTE),
        state("console-consumer-77", status="STOPPED", wait_ms=90 * MINUTE),
    ]
    alerts = found(states, thresholds, stale_groups=["console-consumer-77"])
    assert [(alert.severity, alert.kind, alert.group, alert.topic) for alert in alerts] == [
        ("critical", "behind", "billing-eu", "orders"),
        ("warning", "uncommitted", "fresh", "orders"),
        ("warning", "unread", "audit", "orders"),
        ("warning", "silent", "billing-eu", "refunds"),
    ]
    assert (alerts[2].unread_records, alerts[2].limit_records, alerts[2].limit_ms) == (1100, 1000, None)
    assert (alerts[3].commit_age_ms, alerts[3].limit_ms) == (61 * MINUTE, 60 * MINUTE)


def test_a_topic_has_its_worst_alert_only(tmp_path: Path) -> None:
    thresholds = read_thresholds(written(tmp_path, FILE))
    states = [
        state("audit", status="WARNING", unread_records=2000, wait_ms=20 * MINUTE),
        state("audit", status="STOPPED", unread_records=3, wait_ms=30 * MINUTE),
        state("audit", topic="other", status="UNKNOWN", unread_records=1),
        # A limit may be more severe than a status.
        state("billing-eu", status="WARNING", unread_records=1, wait_ms=MINUTE),
    ]
    past = [PastEnd("audit", "orders", 1, 2, NOW - MINUTE)]
    alerts = found(states, thresholds, past_ends=past, stale_groups=["audit"])
    assert [(alert.severity, alert.kind, alert.group, alert.topic) for alert in alerts] == [
        ("critical", "stopped", "audit", "orders"),
        ("critical", "behind", "billing-eu", "orders"),
        ("notice", "unknown", "audit", "other"),
        ("notice", "stale", "audit", None),
    ]


def document(alerts: list[Any], **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "source": "redis://host",
        "as_of_ms": NOW,
        "history_ms": 86_400_000,
        "groups": 5,
        "compared_to_ms": None,
        "console": None,
    }
    return alerts_document(alerts, **{**usual, **more})


def test_the_json_follows_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    kinds = [kind for kind in KINDS if kind.upper() in STATUSES]
    states = [state("a/b c", f"topic-{kind}", status=kind.upper(), wait_ms=6 * MINUTE) for kind in kinds]
    alerts = found(states, past_ends=[PastEnd("x", "orders", 0, 1, NOW)], stale_groups=["old"])
    for made in (
        document([]),
        document(alerts, compared_to_ms=NOW - 1, console="https://c/{group}?a={group}"),
    ):
        jsonschema.validate(made, SCHEMA)
    assert [alert["kind"] for alert in made["alerts"]] == [
        "lost",
        "ahead",
        "rewind",
        "stalled",
        "stopped",
        "warning",
        "uncommitted",
        "behind",
        "behind",
        "stale",
    ]
    assert made["severity"] == "critical"
    assert made["groups_by_severity"] == {"critical": 1, "warning": 0, "notice": 1, "ok": 3}
    assert made["alerts"][0]["console_url"] == "https://c/a%2Fb%20c?a=a%2Fb%20c"
    assert made["as_of"] == "2026-09-21T14:13:20Z"
    assert set(SCHEMA["$defs"]["alert"]["properties"]["kind"]["enum"]) == set(KINDS)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**made, "alerts": [{**made["alerts"][0], "wait": 1}]}, SCHEMA)


def test_every_kind_is_documented_and_on_the_page() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "explain" / "group-status.md").read_text("utf-8")
    script = files("korvet.spark.report").joinpath("assets", "page.js").read_text("utf-8")
    assert [kind for kind in KINDS if f"| {kind.replace('_', ' ')} |" not in text] == []
    assert [kind for kind in KINDS if f"  {kind.upper()}: [" not in script] == []
    assert {status.lower() for status in STATUSES} - {*KINDS} == {"ok"}


def test_exit_statuses() -> None:
    severities = ("ok", "notice", "warning", "critical")
    assert [exit_status(severity, "never") for severity in severities] == [0, 0, 0, 0]
    assert [exit_status(severity, "warning") for severity in severities] == [0, 0, 3, 4]
    assert [exit_status(severity, "critical") for severity in severities] == [0, 0, 0, 4]


def test_options_replace_the_defaults_of_the_file(tmp_path: Path) -> None:
    given: list[AlertOptions] = []

    def keep(alerting: AlertOptions) -> None:
        given.append(alerting)

    command = click.command()(with_alert_options(keep))
    file = str(written(tmp_path, FILE))
    arguments = [
        "--thresholds",
        file,
        "--max-wait",
        "off",
        "--max-unread",
        "5",
        "--fail-on",
        "warning",
        "--json",
    ]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    limits = given[0].parsed_thresholds().limits("audit", "orders")
    assert (limits.max_wait.value, limits.max_unread.value, limits.max_commit_age.value) == (None, 5, None)
    assert (given[0].fail_on, given[0].as_json) == ("warning", True)
    for arguments, message in [
        (["--max-wait", "5"], "Invalid value for '--max-wait': '5' is not a duration"),
        (["--max-unread", "-5"], "'-5' is not a number of records"),
        (["--fail-on", "notice"], "'notice' is not one of"),
        (["--console-url", "https://host/"], "'https://host/' has no {group}"),
        (["--console-url", "javascript:{group}"], "is not an http or https URL"),
    ]:
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 2, arguments
        assert message in " ".join(result.output.split())


def open_for(age_ms: int, name: str | None, timeout_ms: int | None) -> OpenTransaction:
    return OpenTransaction("orders", 3, 77, 1200, name, NOW - age_ms, timeout_ms)


@pytest.mark.parametrize(
    ("name", "timeout_ms", "limit_ms"),
    [("billing", MINUTE, MINUTE + GRACE_MS), (None, None, MAX_TRANSACTION_MS + GRACE_MS)],
)
def test_a_transaction_hangs_after_its_timeout(
    capsys: pytest.CaptureFixture[str], name: str | None, timeout_ms: int | None, limit_ms: int
) -> None:
    assert list(hanging([open_for(limit_ms, name, timeout_ms)], NOW)) == []
    findings = [origin(True, [3]), *hanging([open_for(limit_ms + 1, name, timeout_ms)], NOW)]
    made = document([], findings=findings)
    jsonschema.validate(made, SCHEMA)
    assert made["severity"] == "critical"
    first, last = made["findings"]
    assert (first["kind"], first["topic"], first["partition"]) == ("hanging_transaction", "orders", 3)
    assert first["age_ms"] == limit_ms + 1
    assert "hangs in orders 3 at offset 1200" in first["message"]
    assert ("billing" in first["message"]) == (name is not None)
    assert (last["kind"], last["severity"]) == ("origin", "ok")
    for each in findings:
        tell(each)
    assert capsys.readouterr().err == f"critical: {first['message']}\n"


def test_a_transaction_that_the_login_may_not_describe() -> None:
    (found,) = hanging(
        [open_for(MAX_TRANSACTION_MS + GRACE_MS + 1, None, None)._replace(is_visible=False)], NOW
    )
    assert "that this login may not describe (producer 77) hangs in orders 3" in found.message
    assert found.message.endswith("not known (ACL: Describe on transactional IDs)")


def test_missing_rights_are_notices() -> None:
    rights = Rights(frozenset({"hidden"}), frozenset({"__consumer_offsets", "orders"}))
    made = document([], findings=missing(rights))
    jsonschema.validate(made, SCHEMA)
    assert made["severity"] == "notice"
    assert [(each["kind"], each["topic"]) for each in made["findings"]] == [
        ("not_read", "__consumer_offsets"),
        ("not_read", "orders"),
        ("hidden", "hidden"),
    ]
    assert set(SCHEMA["$defs"]["finding"]["properties"]["kind"]["enum"]) == set(FINDINGS)
    # Without a topic nobody has committed yet.
    assert document([], findings=[*missing(Rights()), origin(False, [])])["severity"] == "ok"

"""`korvet groups reset-offsets` and `korvet topics delete-records` on a running broker."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from korvet.cli.app import korvet as command
from tests.support.confluent import consumer, producer, send
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import KorvetServer

TIMEOUT_S = 30
HOUR_MS = 3_600_000


def run(server: KorvetServer, *arguments: str, status: int = 0, redis: bool = True) -> str:
    where = ["--data-dir", str(server.data_dir)] if redis else []
    done = CliRunner().invoke(command, [*arguments, "-b", server.bootstrap, *where], catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done.stdout if status == 0 else done.output


def reset(server: KorvetServer, group: str, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        run(server, "groups", "reset-offsets", group, "--json", *arguments)
    )["offsets"]
    return found


def committed(server: KorvetServer, group: str) -> dict[tuple[str, int], int]:
    rows = json.loads(run(server, "groups", "offsets", group, "--json", redis=False))
    return {(row["topic"], row["partition"]): row["committed"] for row in rows}


def starts(server: KorvetServer, topic: str) -> dict[int, int]:
    found = json.loads(run(server, "topics", "describe", topic, "--json", redis=False))
    return {row["partition"]: row["log_start"] for row in found["partitions"]}


def ends(server: KorvetServer, topic: str) -> dict[int, int]:
    found = json.loads(run(server, "topics", "describe", topic, "--json", redis=False))
    return {row["partition"]: row["log_end"] for row in found["partitions"]}


@pytest.fixture(params=["clock", "dense"])
def assignment(request) -> str:
    return request.param


@pytest.fixture
def times_ms() -> list[int]:
    """The times of ten records: one an hour, the last of them an hour ago."""
    now_ms = time.time_ns() // 1_000_000
    return [now_ms - HOUR_MS * (10 - number) for number in range(10)]


@pytest.fixture
def filled(assignment: str, korvet: KorvetServer, new_topic: Callable[..., str], times_ms: list[int]) -> str:
    """A topic of two partitions with ten records each, an hour apart."""
    name = new_topic(2, {"offset.assignment": assignment})
    for partition in (0, 1):
        records = [Record(None, b"%d" % at, (), at_ms) for at, at_ms in enumerate(times_ms)]
        send(producer(korvet.bootstrap), name, partition, records)
    return name


def test_a_preview_changes_nothing_and_counts_records(korvet, filled, group):
    rows = reset(korvet, group, "-t", filled, "--to-latest", "--execute")
    assert [(row["current"], row["new"], row["records"]) for row in rows] == [
        (None, end, None) for end in ends(korvet, filled).values()
    ]
    before = committed(korvet, group)
    (row,) = reset(korvet, group, "-t", f"{filled}:1", "--to-earliest")
    assert row["partition"] == 1
    assert (row["current"], row["records"]) == (before[filled, 1], -10)
    assert row["offsets"] == row["new"] - row["current"] < 0
    assert committed(korvet, group) == before
    text = run(korvet, "groups", "reset-offsets", group, "-t", f"{filled}:1", "--to-earliest")
    assert "Nothing was changed. Add --execute" in text
    assert text.splitlines()[1].split() == [filled, *(str(row[name]) for name in list(row)[1:])]


def test_offsets_move_to_a_time_and_by_a_duration(korvet, filled, group, times_ms):
    reset(korvet, group, "-t", filled, "--to-latest", "--execute")
    at = datetime.fromtimestamp(times_ms[3] / 1000, UTC).isoformat(timespec="milliseconds")
    rows = reset(korvet, group, "--all-topics", "--to-datetime", at, "--execute")
    assert [row["records"] for row in rows] == [-7, -7]
    assert committed(korvet, group) == {(filled, row["partition"]): row["new"] for row in rows}
    # Forward: from the fourth record to the first of the last five and a half hours.
    assert [row["records"] for row in reset(korvet, group, "--all-topics", "--by-duration", "5h30m")] == [
        2
    ] * 2
    # No record is that late: the end.
    (first, _) = reset(korvet, group, "--all-topics", "--by-duration", "PT1S")
    assert first["new"] == ends(korvet, filled)[0]
    reset(korvet, group, "-t", f"{filled}:1", "--to-latest", "--execute")
    reset(korvet, group, "-t", f"{filled}:1", "--to-offset", str(rows[1]["new"]), "--execute")
    client = consumer(korvet.bootstrap, group)
    client.subscribe([filled])
    values = []

    def read() -> bool:
        message = client.poll(0.2)
        if message is not None:
            values.append(message.value())
        return len(values) == 14

    until(read, TIMEOUT_S, "the rest of both partitions")
    client.close()
    assert sorted(values) == sorted([b"%d" % number for number in range(3, 10)] * 2)


def test_an_offset_outside_the_log_becomes_the_nearest(korvet, filled, group):
    done = CliRunner().invoke(
        command,
        [
            "groups",
            "reset-offsets",
            group,
            "-t",
            f"{filled}:0",
            "--to-offset",
            str(2**60),
            "-b",
            korvet.bootstrap,
        ],
    )
    assert done.exit_code == 0
    assert f"{ends(korvet, filled)[0]} is the nearest to {2**60}" in done.stderr


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_refused(korvet, topic, group, protocol):
    client = consumer(korvet.bootstrap, group, group_protocol=protocol)
    client.subscribe([topic])
    until(lambda: client.poll(0.1) is None and client.assignment(), TIMEOUT_S, "its assignment")
    client.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    said = run(korvet, "groups", "reset-offsets", group, "-t", topic, "--to-latest", "--execute", status=1)
    assert f"group {group} is Stable with 1 member: stop its consumers" in said
    assert committed(korvet, group) == {(topic, 0): 7}
    client.close()


def test_without_redis_records_are_known_with_dense_offsets_and_offsets_move(
    korvet, filled, assignment, group, tmp_path: Path
):
    reset(korvet, group, "-t", filled, "--to-latest", "--execute")
    arguments = ["groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute", "--json"]
    done = CliRunner().invoke(command, [*arguments, "-b", korvet.bootstrap, "--data-dir", str(tmp_path)])
    assert done.exit_code == 0
    unknown = assignment == "clock"
    assert ("records are not counted: no embedded server runs on" in done.stderr) == unknown
    rows = json.loads(done.stdout)["offsets"]
    assert [row["records"] for row in rows] == [None if unknown else -10] * 2
    assert set(committed(korvet, group).values()) == set(starts(korvet, filled).values())


def test_records_before_an_offset_are_deleted(korvet, filled, group, times_ms):
    at = datetime.fromtimestamp(times_ms[4] / 1000, UTC).isoformat(timespec="milliseconds")
    (row, _) = reset(korvet, group, "-t", filled, "--to-datetime", at)
    place, where = f"0={row['new']}", ("--data-dir", str(korvet.data_dir))
    done = CliRunner().invoke(
        command,
        ["topics", "delete-records", filled, "-p", place, "-b", korvet.bootstrap, *where],
        input="n\n",
    )
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].split() == ["0", "0", str(row["new"]), "4"]
    assert starts(korvet, filled) == {0: 0, 1: 0}
    text = run(korvet, "topics", "delete-records", filled, "-p", place, "--yes")
    assert text == f"{filled} partition 0 now starts at offset {row['new']}\n"
    assert starts(korvet, filled) == {0: row["new"], 1: 0}


def test_records_before_a_time_are_deleted(korvet, filled, times_ms):
    at = datetime.fromtimestamp(times_ms[9] / 1000, UTC).isoformat(timespec="milliseconds")
    done = json.loads(
        run(korvet, "topics", "delete-records", filled, "--before-timestamp", at, "-y", "--json")
    )
    assert {row["partition"]: row["log_start"] for row in done} == starts(korvet, filled)
    client = consumer(korvet.bootstrap, f"{filled}-readers")
    client.assign([TopicPartition(filled, 0, starts(korvet, filled)[0])])
    message = until(lambda: client.poll(0.2), TIMEOUT_S, "the last record")
    assert message.value() == b"9"
    client.close()


def test_all_records_are_deleted(korvet, filled):
    run(korvet, "topics", "delete-records", filled, "--all", "--yes")
    assert starts(korvet, filled) == ends(korvet, filled)
    assert set(starts(korvet, filled).values()) != {0}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("groups", "reset-offsets", "g", "--to-latest"), 2, "give --topic or --all-topics"),
        (("groups", "reset-offsets", "g", "-t", "a"), 2, "give one of --to-earliest"),
        (
            ("groups", "reset-offsets", "g", "-t", "a:x", "--to-latest"),
            2,
            "expected TOPIC or TOPIC:PARTITION",
        ),
        (("groups", "reset-offsets", "g", "-t", "none", "--to-latest"), 1, "none: "),
        (("groups", "reset-offsets", "none", "--all-topics", "--to-latest"), 1, "group none has no offsets"),
        (("groups", "reset-offsets", "g", "-t", "a", "--by-duration", "soon"), 2, "expected a duration"),
        (("groups", "reset-offsets", "g", "-t", "a", "--to-datetime", "soon"), 2, "expected a time"),
        (("groups", "reset-offsets", "g", "-t", "a", "--to-datetime", "1969-12-31"), 2, "expected a time"),
        (("topics", "delete-records", "a"), 2, "give one of --partition"),
        (("topics", "delete-records", "a", "--all", "--json"), 2, "--json needs --yes"),
        (("topics", "delete-records", "a", "-p", "0"), 2, "expected PARTITION=OFFSET"),
        (("topics", "delete-records", "none", "--all", "-y"), 1, "none: "),
    ],
)
def test_mistakes(korvet, arguments, status, message):
    assert message in run(korvet, *arguments, status=status)


def test_an_offset_after_the_end_deletes_nothing(korvet, filled):
    said = run(korvet, "topics", "delete-records", filled, "-p", "0=0", "-p", f"1={2**60}", "-y", status=1)
    assert f"{filled} partition 1 ends at offset" in said
    assert starts(korvet, filled) == {0: 0, 1: 0}


def test_records_of_an_internal_topic_are_not_offered_for_deletion(korvet, group):
    committed(korvet, group)
    said = run(korvet, "topics", "delete-records", "__consumer_offsets", "--all", status=1)
    assert said == "Error: __consumer_offsets is an internal topic: its records cannot be deleted\n"


def test_a_compacted_topic_keeps_its_records(korvet, new_topic):
    name = new_topic(1, {"cleanup.policy": "compact"})
    send(producer(korvet.bootstrap), name, 0, [Record(b"k", b"v", (), NOW_MS)])
    assert f"{name} partition 0: " in run(korvet, "topics", "delete-records", name, "--all", "-y", status=1)

"""`korvet transactions` on a broker that has lost a marker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kio.schema.errors import ErrorCode

from korvet.cli.app import korvet as command
from korvet.coordinator.markers import LocalMarkers
from tests.api.asking import Client, connect
from tests.api.batches import batch
from tests.api.test_produce import put
from tests.api.test_transactions import Producer, shown
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import SimpleNamespace


@pytest.fixture
def client(in_process: SimpleNamespace) -> Iterator[Client]:
    with connect(in_process) as asking:
        topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in ("t", "u")]
        asking("CreateTopics", 7, topics=topics, timeout=10_000, validate_only=False)
        yield asking


def run(broker: SimpleNamespace, *arguments: str, status: int = 0, given: str | None = None) -> str:
    where = ["-b", f"{broker.host}:{broker.port}"]
    done = CliRunner().invoke(
        command, ["transactions", *arguments, *where], input=given, catch_exceptions=False
    )
    assert done.exit_code == status, done.output
    return done.output


def listed(broker: SimpleNamespace) -> str:
    """The list of transactions, once the coordinator's partitions are loaded."""
    where = ["-b", f"{broker.host}:{broker.port}"]

    def found() -> str:
        done = CliRunner().invoke(command, ["transactions", "list", "--json", *where])
        assert done.exit_code == 0 or "COORDINATOR_LOAD_IN_PROGRESS" in done.output
        return done.output if done.exit_code == 0 else ""

    return until(found, 30, "the list")


def hang(client: Client, monkeypatch: pytest.MonkeyPatch) -> Producer:
    """Write in a transaction that the coordinator ends, while the markers get lost."""
    producer = Producer(client, "t")
    assert producer.init().error_code == 0
    producer.write(b"lost", partition=0)

    async def lose(self: LocalMarkers, *arguments: Any) -> ErrorCode:
        return ErrorCode.none

    with monkeypatch.context() as lossy:
        lossy.setattr(LocalMarkers, "write", lose)
        assert producer.end() == 0
        # The next transaction begins when the coordinator has done with this one.
        assert producer.init().error_code == 0
    return producer


def test_a_hanging_transaction_is_found_and_aborted(
    in_process: SimpleNamespace, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = hang(client, monkeypatch)
    state = json.loads(run(in_process, "describe", producer.name, "--json"))
    assert (state["state"], state["start_ms"], state["partitions"]) == ("Empty", None, [])
    listed(in_process)
    put(client, "t", batch([(b"k", b"waits")]))
    assert shown(client, "t")[0] == []
    assert json.loads(run(in_process, "find-hanging", "--json")) == []
    (found,) = json.loads(run(in_process, "find-hanging", "--idle", "0s", "--json"))
    number = str(producer.identity[0])
    assert (found["topic"], found["partition"], str(found["producer_id"])) == ("t", 0, number)
    line = run(in_process, "find-hanging", "--idle", "0s", "-t", "t").splitlines()[1]
    assert line.split()[:5] == ["t", "0", number, str(found["producer_epoch"]), str(found["start_offset"])]
    assert run(in_process, "find-hanging", "--idle", "0s", "-t", "u", "--json") == "[]\n"
    named = ("t", "0", "--producer-id", number, "--idle", "0s")
    assert "has newer records than --idle" in run(in_process, "abort", *named[:4], "-y", status=1)
    assert f"from offset {found['start_offset']} on?" in run(
        in_process, "abort", *named, status=1, given="n\n"
    )
    assert shown(client, "t")[0] == []
    assert "\naborted the transaction of producer" in run(in_process, "abort", *named, given="y\n")
    assert shown(client, "t")[0] == [b"waits"]
    assert "has no open transaction" in run(in_process, "abort", *named, "--yes", status=1)


def test_a_transaction_that_goes_on_is_listed_and_not_aborted(
    in_process: SimpleNamespace, client: Client
) -> None:
    producer = Producer(client, "t")
    producer.init()
    producer.write(b"1", partition=1)
    number = producer.identity[0]
    (row,) = json.loads(listed(in_process))
    assert row == {
        "transactional_id": producer.name,
        "coordinator": f"{in_process.host}:{in_process.port}",
        "producer_id": number,
        "state": "Ongoing",
    }
    assert run(in_process, "list").splitlines()[1].split() == [*map(str, row.values())]
    found = json.loads(run(in_process, "describe", producer.name, "--json"))
    assert (found["state"], found["producer_id"], found["timeout_ms"]) == ("Ongoing", number, 60_000)
    assert found["partitions"] == ["t-1"]
    text = run(in_process, "describe", producer.name)
    assert "state: Ongoing\n" in text
    assert "timeout: 1 min\n" in text
    assert run(in_process, "find-hanging", "--idle", "0s", "--json") == "[]\n"
    said = run(in_process, "abort", "t", "1", "--producer-id", str(number), "-y", status=1)
    assert f"does not hang: the coordinator of {producer.name} will end it" in said
    assert producer.end() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("describe", "nobody"), "transactional ID nobody: "),
        (("abort", "t", "5", "--producer-id", "1", "-y"), "t has no partition 5"),
        (("abort", "none", "0", "--producer-id", "1", "-y"), "none: "),
        (("find-hanging", "-t", "none"), "none: "),
    ],
)
def test_mistakes(
    in_process: SimpleNamespace, client: Client, arguments: tuple[str, ...], message: str
) -> None:
    assert message in run(in_process, *arguments, status=1)

"""`korvet topics` on a running broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet
from tests.api.batches import batch
from tests.api.test_tail import put

if TYPE_CHECKING:
    from tests.support.servers import Broker


def run(broker: Broker, *arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(korvet, ["topics", *arguments, "-b", broker.bootstrap])
    assert done.exit_code == status, done.output
    return done.output


def state(broker: Broker, name: str) -> tuple[int, str]:
    """The number of partitions, and retention.ms."""
    found = json.loads(run(broker, "describe", name, "--json"))
    return len(found["partitions"]), found["configs"]["retention.ms"]


def test_partitions_and_configs_change_together(broker, new_topic):
    name = new_topic(2, {"retention.ms": "1000"})
    assert run(broker, "alter", name, "-p", "3", "-c", "retention.ms=2000") == f"changed {name}\n"
    assert state(broker, name) == (3, "2000")


def test_a_topic_that_exists_is_created_only_if_it_may(broker, fresh):
    name = fresh("topic")
    assert run(broker, "create", name, "--if-not-exists", "-p", "2") == f"created {name} with 2 partitions\n"
    assert run(broker, "create", name, "--if-not-exists", "-p", "3") == f"{name} exists already\n"
    assert "TOPIC_ALREADY_EXISTS" in run(broker, "create", name, status=1)
    assert len(json.loads(run(broker, "describe", name, "--json"))["partitions"]) == 2
    assert "INVALID_TOPIC_EXCEPTION" in run(broker, "create", "a/b", "--if-not-exists", status=1)


@pytest.mark.parametrize(
    ("partitions", "config", "message"),
    [
        ("4", "retention.ms=soon", "Invalid value soon for configuration retention.ms"),
        ("2", "retention.ms=2000", "The topic {} has 3 partition(s)"),
    ],
)
def test_a_change_that_fits_only_in_part_changes_nothing(broker, new_topic, partitions, config, message):
    name = new_topic(3, {"retention.ms": "1000"})
    said = run(broker, "alter", name, "-p", partitions, "-c", config, status=1)
    assert message.format(name) in said
    assert state(broker, name) == (3, "1000")


def test_sizes_of_topics(broker, ask, new_topic):
    """The memory is what Redis has for the payload; the table ends with the sums."""
    large, empty = new_topic(2), new_topic(1)
    put(ask, large, batch([(b"key", b"v" * 1_000)] * 100))
    found = {each["topic"]: each for each in json.loads(run(broker, "list", "--json"))}
    assert 100_000 < found[large]["payload_bytes"] < 110_000
    assert 100_000 < found[large]["memory_bytes"] < 1_000_000
    assert (found[empty]["payload_bytes"], found[empty]["memory_bytes"]) == (0, 0)
    *rows, total = run(broker, "list").splitlines()
    assert rows[0].split() == ["TOPIC", "PARTITIONS", "INTERNAL", "PAYLOAD", "MEMORY"]
    assert next(row for row in rows if row.startswith(large)).split()[1:3] == ["2", "no"]
    assert int(total.split()[0]) == sum(each["partitions"] for each in found.values())

"""`korvet topics` on a running broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet

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

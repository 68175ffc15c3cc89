"""`korvet topics` on a running broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    server = KorvetServer()
    try:
        server.start()
        yield server
    finally:
        server.discard()


def run(server: KorvetServer, *arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(korvet, ["topics", *arguments, "-b", server.bootstrap])
    assert done.exit_code == status, done.output
    return done.output


def state(server: KorvetServer, name: str) -> tuple[int, str]:
    """The number of partitions, and retention.ms."""
    found = json.loads(run(server, "describe", name, "--json"))
    return len(found["partitions"]), found["configs"]["retention.ms"]


def test_partitions_and_configs_change_together(server):
    run(server, "create", "both", "-p", "2", "-c", "retention.ms=1000")
    assert run(server, "alter", "both", "-p", "3", "-c", "retention.ms=2000") == "changed both\n"
    assert state(server, "both") == (3, "2000")


@pytest.mark.parametrize(
    ("partitions", "config", "message"),
    [
        ("4", "retention.ms=soon", "Invalid value soon for configuration retention.ms"),
        ("2", "retention.ms=2000", "The topic none_changes has 3 partition(s)"),
    ],
)
def test_a_change_that_fits_only_in_part_changes_nothing(server, partitions, config, message):
    if "none_changes" not in run(server, "list"):
        run(server, "create", "none_changes", "-p", "3", "-c", "retention.ms=1000")
    said = run(server, "alter", "none_changes", "-p", partitions, "-c", config, status=1)
    assert message in said
    assert state(server, "none_changes") == (3, "1000")

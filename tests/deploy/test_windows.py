"""The commands of the client's side on Windows, as far as Linux can show it: tests/deploy/windows_program.py
hides what Windows lacks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from tests.support.admin import create_topic
from tests.support.polling import patient
from tests.support.servers import KorvetServer

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240
CLIENTS = """
    acls configs doctor export groups jars module monitoring offsets quotas ready report tables top topics
    transactions upgrade users version
"""
OTHERS = "backup repair restore rewrite serve"


def on_windows(*lines: str) -> dict[str, tuple[int, str]]:
    """Returns the exit status and the output of each command line."""
    command = [sys.executable, "-m", "tests.deploy.windows_program", *lines]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=patient(TIMEOUT_S)
    )
    assert done.returncode == 0, done.stderr
    return cast("dict[str, tuple[int, str]]", json.loads(done.stdout))


def test_the_commands_of_clients_are_imported_and_others_say_that_they_do_not_run() -> None:
    results = on_windows(*(f"{command} --help" for command in (*CLIENTS.split(), *OTHERS.split())))
    for command in CLIENTS.split():
        status, output = results[f"{command} --help"]
        assert (status, output.split(" ", 1)[0]) == (0, "Usage:"), output
    for command in OTHERS.split():
        status, output = results[f"{command} --help"]
        assert status == 1
        assert output.startswith(f"Error: `{command}` does not run on Windows: use WSL or a container.")


@pytest.mark.clients
def test_topics_and_groups_of_a_running_broker_are_listed() -> None:
    with KorvetServer() as server:
        create_topic(server.bootstrap, "seen", 2)
        topics, groups = (
            f"{command} list --bootstrap-server {server.bootstrap} --json" for command in ("topics", "groups")
        )
        results = on_windows(topics, groups)
    assert results[groups] == [0, "[]\n"]
    status, output = results[topics]
    assert (status, [topic["topic"] for topic in json.loads(output)]) == (0, ["seen"])

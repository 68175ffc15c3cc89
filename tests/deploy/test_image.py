"""The image of the broker: its licences and its first process without an engine, and all of it with one.

No test replaces the base images of the Dockerfile: an engine that can't get them skips the test.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from tests.support.confluent import producer, read_all
from tests.support.polling import patient, until
from tests.support.ports import accepts, free_port
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 1500
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20


def base_packages() -> set[str]:
    """Returns the names of all packages of the base installation."""
    found: set[str] = set()
    waiting = ["korvet"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found - {"korvet"}


def test_the_licences_of_all_packages_are_written(tmp_path: Path) -> None:
    packages = base_packages()
    for name in packages:
        (metadata,) = {
            path.parts[0]
            for path in importlib.metadata.files(name) or ()
            if path.parts[0].endswith(".dist-info")
        }
        folder = Path(str(importlib.metadata.distribution(name).locate_file(metadata)))
        (tmp_path / metadata).symlink_to(folder)
    command = [sys.executable, "-S", str(ROOT / "tools" / "licenses.py")]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    listed = re.findall(r"^(\S+) (\S+): ", done.stdout.partition("===")[0], re.MULTILINE)
    versions = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in listed}
    assert versions == {name: importlib.metadata.version(name) for name in packages}
    assert "crc32c: LICENSE" in done.stdout
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in done.stdout


@pytest.mark.clients
def test_a_broker_that_is_the_first_process_stops_in_order(tmp_path: Path) -> None:
    """The kernel ignores signals to the first process of a container that the process has no handler for."""
    unshare = shutil.which("unshare")
    isolated = [str(unshare), "--pid", "--fork", "--kill-child"]
    if not unshare or subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a process namespace (unshare --pid)")
    address = f"127.0.0.1:{free_port()}"
    python = [sys.executable, "-m", "korvet"]
    command = [*isolated, *python, "serve", "--listen", address, "--data-dir", str(tmp_path / "data")]
    child = Child(command, tmp_path / "log")
    try:
        ready = [*python, "ready", "--listen", address, "--wait", str(START_TIMEOUT_S)]
        subprocess.run(ready, check=True)
        (first,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        until(lambda: not child.running, STOP_TIMEOUT_S, "the broker ends")
        assert child.exit_code == 0, child.output()
    finally:
        child.kill()


@pytest.fixture(scope="module")
def engine() -> str:
    """An engine that runs: docker or podman."""
    for name in ("docker", "podman"):
        program = shutil.which(name)
        if program and subprocess.run([program, "info"], capture_output=True, check=False).returncode == 0:
            return program
    pytest.skip("needs an engine that runs (docker or podman)")


@pytest.fixture(scope="module")
def image(engine: str) -> Iterator[str]:
    """The image of the broker, built for this machine."""
    tag = f"korvet-test:{uuid.uuid4().hex[:12]}"
    dockerfile = (ROOT / "Dockerfile").read_text()
    for base in set(re.findall(r"^FROM (\S+) AS (?:build|broker)$", dockerfile, re.MULTILINE)):
        done = subprocess.run([engine, "pull", base], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{base} can't be had: {done.stderr.strip().splitlines()[-1]}")
    command = [engine, "build", "--target", "broker", "--tag", tag, str(ROOT)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=patient(BUILD_TIMEOUT_S)
    )
    assert done.returncode == 0, done.stderr[-4000:]
    yield tag
    subprocess.run([engine, "rmi", "--force", tag], capture_output=True, check=False)


@pytest.mark.long
@pytest.mark.clients
@pytest.mark.timeout(BUILD_TIMEOUT_S + 300)
def test_a_container_serves_and_stops_in_order(engine: str, image: str) -> None:
    name, port = f"korvet-{uuid.uuid4().hex[:12]}", free_port()

    def run(*command: str) -> str:
        done = subprocess.run([engine, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    place = ["--publish", f"127.0.0.1:{port}:9092", "--env", f"KORVET_ADVERTISE=127.0.0.1:{port}"]
    run("run", "--detach", "--name", name, "--read-only", "--volume", f"{name}:/data", *place, image)
    try:
        until(lambda: accepts("127.0.0.1", port), START_TIMEOUT_S, f"port {port} of {name}")
        until(lambda: not run("exec", name, "korvet", "ready"), START_TIMEOUT_S, f"{name} is ready")
        health = json.loads(run("inspect", "--format", "{{json .Config.Healthcheck.Test}}", name))
        assert health == ["CMD", "korvet", "ready"]
        assert run("exec", name, "id", "-u") == "10001"
        licences = run("exec", name, "cat", "/opt/korvet/LICENSES.txt")
        assert "GNU LESSER GENERAL PUBLIC LICENSE" in licences
        client = producer(f"127.0.0.1:{port}")
        client.produce("kept", b"value")
        assert client.flush(START_TIMEOUT_S) == 0
        assert [each.record.value for each in read_all(f"127.0.0.1:{port}", "kept")] == [b"value"]
        run("stop", "--time", str(STOP_TIMEOUT_S), name)
        assert run("inspect", "--format", "{{.State.ExitCode}}", name) == "0"
    finally:
        subprocess.run([engine, "rm", "--force", "--volumes", name], capture_output=True, check=False)
        subprocess.run([engine, "volume", "rm", "--force", name], capture_output=True, check=False)

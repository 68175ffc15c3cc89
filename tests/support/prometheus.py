"""A real Prometheus on loopback, and its promtool: Debian's package `prometheus` has both."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import Child, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from subprocess import CompletedProcess

JOB = "korvet"
START_S = 30
QUERY_S = 20
CHECK_S = 60

Labels: TypeAlias = "frozenset[tuple[str, str]]"


def program(name: str) -> str:
    """Returns the path of `prometheus` or `promtool`; skips the test without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} on PATH (Debian's package prometheus)")
    return found


def promtool(*arguments: str | Path, stdin: bytes = b"") -> CompletedProcess[bytes]:
    """Run promtool to its end; the caller judges its exit status."""
    return run([program("promtool"), *map(str, arguments)], CHECK_S, stdin)


def page(address: str, path: str = "/metrics", accept: str = "text/plain") -> str:
    """Returns a page of an admin endpoint, `HOST:PORT`."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=QUERY_S) as reply:
        return str(reply.read().decode())


class Prometheus:
    """`prometheus` as a process, which scrapes these targets and evaluates these rules every `interval`."""

    def __init__(
        self, folder: Path, targets: Sequence[str], rules: Iterable[Path] = (), interval: str = "1s"
    ) -> None:
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": list(targets)}]}],
        }
        folder.mkdir(parents=True, exist_ok=True)
        # JSON is YAML, too.
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.address = f"127.0.0.1:{free_port()}"
        self._child = Child(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
                "--log.level=warn",
            ],
            folder / "prometheus.log",
        )
        until(self._ready, START_S, "Prometheus is ready")

    def _ready(self) -> bool:
        assert self._child.running, self._child.output()
        try:
            return bool(page(self.address, "/-/ready"))
        except (urllib.error.URLError, ConnectionError):
            return False

    def api(self, name: str, **parameters: str) -> Any:
        """Returns the data of an API's answer. Raises AssertionError with Prometheus' reason."""
        url = f"http://{self.address}/api/v1/{name}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=QUERY_S) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{name} {parameters}: {error.read().decode()}") from None

    def vector(self, expression: str) -> dict[Labels, float]:
        """Evaluate an expression now. Returns its values by their labels, without the metric's name."""
        found = self.api("query", query=expression)
        if found["resultType"] == "scalar":
            return {frozenset(): float(found["result"][1])}
        return {
            frozenset((name, value) for name, value in each["metric"].items() if name != "__name__"): float(
                each["value"][1]
            )
            for each in found["result"]
        }

    def by(self, expression: str, *names: str) -> dict[tuple[str, ...], float]:
        """Like `vector`, by the values of these labels, which no two results share."""
        values: dict[tuple[str, ...], float] = {}
        for labels, value in self.vector(expression).items():
            of = dict(labels)
            key = tuple(of.get(name, "") for name in names)
            assert key not in values, f"two results of {expression} have {dict(zip(names, key, strict=True))}"
            values[key] = value
        return values

    def value(self, expression: str) -> float | None:
        """Returns the only value of an expression; None if there is none."""
        found = list(self.vector(expression).values())
        assert len(found) < 2, f"{expression} has {len(found)} values"
        return found[0] if found else None

    def wait_for_scrape(self) -> None:
        """Wait until every target has been scraped again, so that expressions see what is so now."""
        now = time.time()

        def scraped() -> bool:
            times = self.vector(f"timestamp(up{{job='{JOB}'}})")
            return bool(times) and min(times.values()) > now

        until(scraped, QUERY_S, "a scrape of all targets")

    def alerts(self) -> dict[str, str]:
        """Returns the names of alerts that are pending or firing, with that state."""
        return {dict(labels)["alertname"]: dict(labels)["alertstate"] for labels in self.vector("ALERTS")}

    def stop(self) -> None:
        self._child.terminate()

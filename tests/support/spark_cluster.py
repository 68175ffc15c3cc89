"""A standalone Spark cluster on loopback: a master and two workers with one core each."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME: Final = Path(pyspark.__file__).parent
_START_DEADLINE_S: Final = 120
# For a few records the JVM's second compiler takes longer than the work.
QUICK_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def environ() -> dict[str, str]:
    """The environment of all processes but drivers: executors get korvet from the driver only."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {
        **kept,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER_HOST": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
    }


@contextmanager
def standalone_cluster(folder: Path, memory_mb: int = 700) -> Iterator[str]:
    """Yields the master's URL. folder: of logs and executors; memory_mb: of each worker."""
    port, children = free_port(), []
    url = f"spark://127.0.0.1:{port}"
    program = [str(HOME / "bin" / "spark-class"), "org.apache.spark.deploy.{}", "--host", "127.0.0.1"]
    words = ["--port", str(port), "--webui-port", str(free_port())]

    def start(what: str, name: str, more: list[str]) -> Child:
        command = [part.format(what) for part in program] + more
        children.append(Child(command, folder / f"{name}.log", environ()))
        return children[-1]

    try:
        master = start("master.Master", "master", words)
        until(lambda: "I have been elected leader" in master.output(), _START_DEADLINE_S, "a master")
        for number in range(2):
            place = ["--webui-port", str(free_port()), "--work-dir", str(folder / f"work{number}")]
            start(
                "worker.Worker", f"worker{number}", ["--cores", "1", "--memory", f"{memory_mb}m", *place, url]
            )
        until(lambda: master.output().count("Registering worker") == 2, _START_DEADLINE_S, "two workers")
        yield url
    finally:
        for child in reversed(children):
            child.terminate()

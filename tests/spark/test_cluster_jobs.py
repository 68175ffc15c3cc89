"""The commands with spark-submit on a standalone cluster: a master and two workers on loopback."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

import korvet
import korvet.spark.submit
from korvet.spark.bundle import write_bundle
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import Child, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

HOME = Path(pyspark.__file__).parent
SUBMIT = Path(korvet.spark.submit.__file__)
MS = 1_700_000_000_000
START_DEADLINE_S = 120
JOB_TIMEOUT_S = 300
# For a few records the JVM's second compiler takes longer than the work.
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


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
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
    }


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Returns the master's URL."""
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
        until(lambda: "I have been elected leader" in master.output(), START_DEADLINE_S, "a master")
        for number in range(2):
            place = ["--webui-port", str(free_port()), "--work-dir", str(folder / f"work{number}")]
            start("worker.Worker", f"worker{number}", ["--cores", "1", "--memory", "700m", *place, url])
        until(lambda: master.output().count("Registering worker") == 2, START_DEADLINE_S, "two workers")
        yield url
    finally:
        for child in reversed(children):
            child.terminate()


def submit(url: str, program: Path, words: list[str], more: tuple[str, ...] = ()) -> str:
    command = [str(HOME / "bin" / "spark-submit"), "--master", url, "--conf", "spark.ui.enabled=false"]
    command += ["--conf", f"spark.executor.extraJavaOptions={JAVA}", "--driver-java-options", JAVA]
    command += ["--executor-memory", "512m", "--conf", "spark.sql.shuffle.partitions=2", *more]
    driver = {**environ(), "PYTHONPATH": str(Path(korvet.__file__).parents[1])}
    done = run([*command, str(program), *words], JOB_TIMEOUT_S, env=driver)
    # spark-submit writes all output of the program, errors too, to its own output.
    said, output = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, said[-2000:] + output[-4000:]
    assert "Granted executor ID" in output
    return said


def test_export_and_report_on_two_workers(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t", 4)
    keyspace.offsets_topic()
    for number in range(400):
        keyspace.add("t", number % 4, f"{MS}-{number}", b"value", b"%d" % number)
    keyspace.commit("g", "t", 0, MS << 10, at_ms=MS + 5)
    out, folder = tmp_path / "out", tmp_path / "report"
    with cluster(tmp_path) as url:
        words = ["t", "--redis", keyspace.url, "--to", str(out), "--available-now"]
        assert "in parquet" in submit(url, SUBMIT, ["export", *words])
        keyspace.add("t", 0, f"{int(time.time()) * 1000}-0", b"value", b"400")
        # The same with only the zip file, as on clusters without korvet.
        write_bundle(tmp_path / "korvet.zip")
        program = tmp_path / "program.py"
        program.write_text("from korvet.spark.submit import main\nmain()\n")
        submit(url, program, ["export", *words], ("--py-files", str(tmp_path / "korvet.zip")))
        table = tmp_path / "status"
        submit(
            url, SUBMIT, ["export", "--table", "group_status", "--redis", keyspace.url, "--to", str(table)]
        )
        report = submit(url, SUBMIT, ["report", "--redis", keyspace.url, "--out", str(folder)])
    assert [(row["group"], row["record_lag"]) for row in spark.read.parquet(str(table)).collect()] == [
        ("g", 101)
    ]
    found = spark.read.parquet(str(out)).select("value").collect()
    assert sorted(int(row["value"]) for row in found) == list(range(401))
    assert "1 group, 1 needs attention. Report: " in report
    assert (folder / "report.html").stat().st_size > 1000

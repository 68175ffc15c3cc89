"""The commands with spark-submit on a standalone cluster: a master and two workers on loopback."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import korvet
import korvet.spark.submit
from korvet.spark.bundle import write_bundle
from korvet.spark.records.compiled import kernel
from tests.support.processes import run
from tests.support.spark_cluster import HOME, QUICK_JAVA, environ, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(korvet.__file__).parents[1]
SUBMIT = Path(korvet.spark.submit.__file__)
MS = 1_700_000_000_000
JOB_TIMEOUT_S = 600
# Prints the number of records of a topic, and what each of two executors has: where korvet comes from,
# whether there is a kernel, and whether the given Python runs there.
EXECUTORS = """
import json, sys
from korvet.spark.session import build_session

url, python, java = sys.argv[1:]
conf = {"spark.pyspark.python": python}
conf |= {f"spark.{who}.extraJavaOptions": java for who in ("driver", "executor")}
spark = build_session(master="local-cluster[2,1,1024]", conf=conf)
count = spark.read.format("korvet").options(redis=url, topic="t", minPartitions="2").load().count()

def state(_):
    import os
    from korvet.spark.records import compiled
    return compiled.__file__, compiled.kernel is not None, os.environ.get("GIVEN_PYTHON")

print(json.dumps([count, *spark.sparkContext.parallelize(range(2), 2).map(state).collect()]))
"""


def submit(url: str, program: Path, words: list[str], more: tuple[str, ...] = ()) -> str:
    command = [str(HOME / "bin" / "spark-submit"), "--master", url, "--conf", "spark.ui.enabled=false"]
    command += [
        "--conf",
        f"spark.executor.extraJavaOptions={QUICK_JAVA}",
        "--driver-java-options",
        QUICK_JAVA,
    ]
    command += ["--executor-memory", "512m", "--conf", "spark.sql.shuffle.partitions=2", *more]
    driver = {**environ(), "PYTHONPATH": str(ROOT)}
    done = run([*command, str(program), *words], JOB_TIMEOUT_S, env=driver)
    # spark-submit writes all output of the program, errors too, to its own output.
    said, output = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, said[-2000:] + output[-4000:]
    assert "Granted executor ID" in output
    return said


@pytest.mark.usefixtures("own_driver")
def test_export_and_report_on_two_workers(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t", 4)
    keyspace.offsets_topic()
    for number in range(400):
        keyspace.add("t", number % 4, f"{MS}-{number}", b"value", b"%d" % number)
    keyspace.commit("g", "t", 0, MS << 10, at_ms=MS + 5)
    out, folder = tmp_path / "out", tmp_path / "report"
    with standalone_cluster(tmp_path) as url:
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


@pytest.mark.usefixtures("own_driver")
def test_executors_have_the_kernel_and_the_given_python(keyspace: Keyspace, tmp_path: Path) -> None:
    """From the archive, whose path is relative there."""
    keyspace.topic("t", 2)
    for number in range(10):
        keyspace.add("t", number % 2, f"{MS}-{number}", b"value", b"%d" % number)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nGIVEN_PYTHON=yes exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    command = [sys.executable, "-c", EXECUTORS, keyspace.url, str(python), QUICK_JAVA]
    try:
        done = run(command, JOB_TIMEOUT_S, env={**environ(), "PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    finally:
        # The only place for the executors of such a cluster.
        shutil.rmtree(HOME / "work", ignore_errors=True)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    count, *executors = json.loads(done.stdout.decode().splitlines()[-1])
    assert count == 10
    assert executors == [["./korvet.zip/korvet/spark/records/compiled.py", kernel is not None, "yes"]] * 2

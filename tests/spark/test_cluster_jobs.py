"""The commands with spark-submit on a standalone cluster: a master and two workers on loopback."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import korvet
import korvet.spark.submit
from korvet.spark.bundle import write_bundle
from tests.support.processes import run
from tests.support.spark_cluster import HOME, QUICK_JAVA, environ, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

SUBMIT = Path(korvet.spark.submit.__file__)
MS = 1_700_000_000_000
JOB_TIMEOUT_S = 300


def submit(url: str, program: Path, words: list[str], more: tuple[str, ...] = ()) -> str:
    command = [str(HOME / "bin" / "spark-submit"), "--master", url, "--conf", "spark.ui.enabled=false"]
    command += [
        "--conf",
        f"spark.executor.extraJavaOptions={QUICK_JAVA}",
        "--driver-java-options",
        QUICK_JAVA,
    ]
    command += ["--executor-memory", "512m", "--conf", "spark.sql.shuffle.partitions=2", *more]
    driver = {**environ(), "PYTHONPATH": str(Path(korvet.__file__).parents[1])}
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

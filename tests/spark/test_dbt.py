"""dbt builds and tests the models on tables that `korvet tables refresh --format delta` keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]

from korvet.spark.export.all_tables import stored_table, update_tables
from korvet.spark.session.jars import DELTA, SETTINGS
from korvet.spark.source.address import Address
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.questions import QUESTIONS
from korvet.spark.versions import SUPPORTED, running
from tests.spark.test_views import scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Connector
    from tests.spark.keyspace import Keyspace

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "deploy" / "dbt"
# dbt-core 1.12 downloads a part of itself from GitHub when it is installed.
DBT = ("dbt-core>=1.10.5,<1.12", "dbt-spark>=1.9")
INSTALL_TIMEOUT_S = 900
BUILD_TIMEOUT_S = 600


@pytest.fixture(scope="module")
def dbt() -> Path:
    """dbt, in an environment of its own with the PySpark of this one."""
    folder = ROOT / ".cache" / "dbt"
    python, complete = folder / "bin" / "python", folder / "complete"
    packages = sysconfig.get_path("purelib")
    if not complete.exists() or complete.read_text() != packages:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *DBT]
        done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
        if done.returncode:
            pytest.skip(f"dbt can't be installed: {done.stderr.strip().splitlines()[-1]}")
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "pyspark.pth").write_text(f"{packages}\n")
        complete.write_text(packages)
    return folder / "bin" / "dbt"


def profile(folder: Path, jars: Connector) -> dict[str, Any]:
    """The profile `session` of profiles.example.yml, with a warehouse in this folder and a small Spark."""
    example = yaml.safe_load((PACKAGE / "profiles.example.yml").read_text("utf-8"))
    session = example["korvet"]["outputs"]["session"]
    del session["server_side_parameters"]["spark.jars.packages"]
    session["server_side_parameters"] |= {
        **SETTINGS[DELTA],
        "spark.jars": ",".join(map(str, jars.jars)),
        "spark.master": "local[2]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:{folder}/metastore;create=true",
    }
    return {"korvet": {"target": "session", "outputs": {"session": session}}}


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.skipif(running() != SUPPORTED[-1], reason="dbt gets the PySpark of .venv")
@pytest.mark.timeout(INSTALL_TIMEOUT_S + BUILD_TIMEOUT_S + 300)
def test_dbt_builds_and_tests_the_models(
    spark: SparkSession, keyspace: Keyspace, dbt: Path, tmp_path: Path, delta_jars: Connector
) -> None:
    if delta_jars.missing:
        pytest.skip(f"no Delta for Spark: {delta_jars.missing}")
    scenario(keyspace)
    folder = str(tmp_path / "groups")
    # Two samples of the lag, so that the first one has a length.
    for _ in range(2):
        update_tables(spark, Address(keyspace.url), folder, form="delta")
    (tmp_path / "profiles.yml").write_text(yaml.safe_dump(profile(tmp_path, delta_jars)))
    command = [str(dbt), "build", "--project-dir", str(PACKAGE), "--profiles-dir", str(tmp_path)]
    command += ["--target-path", str(tmp_path / "target"), "--log-path", str(tmp_path / "logs")]
    command += ["--vars", json.dumps({"korvet_folder": folder})]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK"))}
    environ["DBT_SEND_ANONYMOUS_USAGE_STATS"] = "false"
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "deprecat" not in done.stdout.lower(), done.stdout
    results = json.loads((tmp_path / "target" / "run_results.json").read_text("utf-8"))["results"]
    built = {each["unique_id"] for each in results if each["status"] == "success"}
    assert {f"model.korvet.korvet_{name}" for name in QUESTIONS} <= built
    tests = [each for each in results if each["unique_id"].startswith("test.")]
    assert len(tests) > len(TABLES)
    assert {each["status"] for each in tests} == {"pass"}
    for name in QUESTIONS:
        mart = spark.read.format("delta").load(str(tmp_path / "warehouse" / "korvet.db" / f"korvet_{name}"))
        expected = stored_table(spark, folder, name)
        assert mart.columns == expected.columns
        assert sorted(map(repr, mart.collect())) == sorted(map(repr, expected.collect())), name
    assert spark.read.format("delta").load(str(tmp_path / "warehouse/korvet.db/korvet_reads")).count() > 0

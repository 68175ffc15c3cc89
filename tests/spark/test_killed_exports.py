"""Continuous exports that are killed at random while records are added: each record is exported once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pytest

from tests.spark.killing import Writer, killed_runs, run_to_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3000)]

LONGEST_RUN_S = 5.0


def test_every_record_is_there_once(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t", 3)
    writer = Writer(keyspace)
    command = [sys.executable, "-m", "korvet", "export", "t", "--redis", keyspace.url, "--master", "local[2]"]
    command += ["--to", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")]
    continuous = [*command, "--continuous", "--every", "200 milliseconds"]
    for _ in killed_runs(continuous, tmp_path, writer, LONGEST_RUN_S):
        pass
    run_to_the_end([*command, "--available-now"], tmp_path)
    expected = list(range(writer.count))
    rows = spark.read.parquet(str(tmp_path / "out")).select("value").collect()
    assert sorted(int(row["value"]) for row in rows) == expected
    # Readers that ignore Spark's log find the same rows.
    found = ds.dataset(sorted((tmp_path / "out").glob("part-*.parquet"))).to_table(["value"])
    assert sorted(int(value.as_py()) for value in found["value"]) == expected

"""A program that only installs korvet: Spark finds the format by its name, in Python and in SQL."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import pyspark_korvet
from korvet.spark.source import KorvetDataSource, SourceError
from tests.spark.direct import schema_of, source, source_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark

# As in the worker that looks for data sources (pyspark/sql/worker/lookup_data_sources.py).
FOUND = "import pkgutil; print([m.name for m in pkgutil.iter_modules() if m.name.startswith('pyspark_')])"


# As in the workers that look for data sources and ask for the schema.
ASKED = """
import sys, pyspark.sql.worker.create_data_source
before = {*sys.modules}
from pyspark_korvet import DefaultSource
DefaultSource({"topic": "t"}).schema()
print(sorted({"numpy", "pyarrow", "redis"} & ({*sys.modules} - before)))
"""


def test_spark_looks_where_the_module_is(tmp_path: Path) -> None:
    """Not in the folder of the checkout, which is on the path only if one works there."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", FOUND], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "pyspark_korvet" in done.stdout
    assert pyspark_korvet.DefaultSource.name() == "korvet"


def test_workers_that_read_nothing_start_fast() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_view_in_sql(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t", 2)
    for number in range(5):
        keyspace.add("t", number % 2, f"{number + 1}-0", b"value", b"%d" % number)
    assigned = json.dumps({"t": [0]})
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW view_t USING korvet OPTIONS "
        f"(redis '{keyspace.url}', assign '{assigned}', failOnDataLoss false, minPartitions 2)"
    )
    rows = spark.sql("SELECT string(value) AS value FROM view_t ORDER BY offset").collect()
    assert [row["value"] for row in rows] == ["0", "2", "4"]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW some_of_t (offset BIGINT, value BINARY) USING korvet OPTIONS "
        f"(redis '{keyspace.url}', topic 't')"
    )
    assert spark.table("some_of_t").columns == ["offset", "value"]
    assert spark.table("some_of_t").count() == 5


def test_a_table_in_sql_is_refused(
    spark: SparkSession, keyspace: Keyspace, record_property: Callable[[str, object], None]
) -> None:
    """Spark keeps a table's options from data sources in Python, so nobody could read it."""
    keyspace.topic("t")
    options = f"USING korvet OPTIONS (redis '{keyspace.url}', topic 't')"
    with pytest.raises(
        Exception, match=r"could not be read: .* Use CREATE TEMPORARY VIEW name USING korvet"
    ) as caught:
        spark.sql(f"CREATE TABLE table_t {options}")
    assert not spark.catalog.tableExists("table_t")
    record_property("refused", source_error(caught.value))


def test_a_table_with_columns_is_refused_when_it_is_read() -> None:
    """Spark does not ask the source when it creates such a table, and passes no options afterwards."""
    with pytest.raises(SourceError, match="needs options, at least topic; Spark keeps the options of CREATE"):
        KorvetDataSource({}).reader(schema_of("value"))


def test_options_of_a_table_and_of_a_reader(keyspace: Keyspace) -> None:
    assert source(keyspace, topic="t", owner="me").schema().startswith("key binary")

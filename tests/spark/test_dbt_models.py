"""The dbt package, without dbt: generated files, its objectives, and its SQL on tables of our schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from korvet.spark.tables.answers import ANSWERS
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.questions import QUESTIONS, Objectives
from tools import dbt_models

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE: Final = Path(__file__).parents[2] / "deploy" / "dbt"


def project() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((PACKAGE / "dbt_project.yml").read_text("utf-8"))
    return found


def rendered(name: str, prefix: str) -> str:
    """The SQL of a model, over views named prefix + name of the model or source."""
    (file,) = PACKAGE.glob(f"models/*/{name}.sql")
    sql = re.sub(r"\{\{ ref\('(\w+)'\) \}\}", rf"{prefix}\1", file.read_text("utf-8"))
    sql = re.sub(r"\{\{ source\('korvet', '(\w+)'\) \}\}", rf"{prefix}\1", sql)
    return re.sub(r"\{\{ var\('(\w+)'\) \}\}", lambda found: str(project()["vars"][found[1]]), sql)


def test_generated_files_are_up_to_date() -> None:
    files = dict(dbt_models.files())
    assert {path: path.read_text("utf-8") for path in files} == files, "run python -m tools.reference"
    there = {path for path in PACKAGE.glob("models/**/*") if path.is_file()}
    assert there == set(files)


def test_objectives_are_those_of_the_views() -> None:
    numbers = Objectives()
    names = ("max_lag_ms", "target", "sample_ms", "silence_ms")
    assert {name: project()["vars"][f"korvet_{name}"] for name in names} == {
        name: getattr(numbers, name) for name in names
    }


@pytest.mark.spark
@pytest.mark.usefixtures("few_rows")
def test_models_have_their_declared_columns(spark: SparkSession) -> None:
    for name, table in TABLES.items():
        spark.createDataFrame([], table.schema).createOrReplaceTempView(f"dbt_{name}")
    for model in sorted(PACKAGE.glob("models/staging/*.sql")):
        staged = spark.sql(rendered(model.stem, "dbt_"))
        table = TABLES[model.stem.removeprefix("stg_korvet__")]
        assert staged.columns == [column.name for column in table.columns]
        staged.createOrReplaceTempView(f"dbt_{model.stem}")
    assert set(ANSWERS) == set(QUESTIONS)
    for name, answer in ANSWERS.items():
        found = spark.sql(rendered(f"korvet_{name}", "dbt_"))
        expected = [(column.name, column.type) for column in answer.columns]
        assert found.dtypes == expected, name
        assert set(answer.key) <= {column.name for column in answer.columns}

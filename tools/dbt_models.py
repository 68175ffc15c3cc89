"""The generated files of the dbt package in deploy/dbt: sources, models and their properties.

The models of the questions have the SQL of korvet.spark.tables.questions. tools.reference writes the files.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

import yaml  # type: ignore[import-untyped]

from korvet.spark.tables.answers import ANSWERS
from korvet.spark.tables.catalog import STATUSES, TABLES
from korvet.spark.tables.questions import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from korvet.spark.tables.catalog import Column

MODELS: Final = Path(__file__).resolve().parents[1] / "deploy" / "dbt" / "models"
STAGING, MART = "stg_korvet__", "korvet_"
_TABLE: Final = re.compile(r"\$\{prefix\}(\w+)")
_LAG: Final = ("group", "topic", "partition", "as_of_ts")
# The columns that identify a row of a table with a staging model.
_KEYS: Final[Mapping[str, Sequence[str]]] = {
    "offset_commits": ("src_partition", "src_offset"),
    "group_generations": ("src_partition", "src_offset"),
    "members": ("group", "member_id"),
    "record_lag": _LAG,
    "time_lag": _LAG,
    "topic_sizes": ("topic", "partition", "as_of_ts"),
}
_GROUP_TYPES: Final = ("classic", "consumer", "share", "streams")
_VALUES: Final[Mapping[tuple[str, str], Sequence[str]]] = {
    ("group_status", "status"): STATUSES,
    ("partition_status", "status"): STATUSES,
    ("anomalies", "kind"): ("rewind", "gap", "lost_records", "past_end", "unknown_partition"),
    ("rebalances", "kind"): ("formed", "rebalanced", "emptied"),
    ("group_generations", "group_type"): _GROUP_TYPES,
    ("members", "group_type"): _GROUP_TYPES,
}


def files() -> Iterator[tuple[Path, str]]:
    """Return every generated file and its text."""
    staged = sorted({name for sql in QUESTIONS.values() for name in _TABLE.findall(sql)})
    yield MODELS / "sources.yml", _yaml({"sources": [_source()]})
    yield MODELS / "staging" / "staging.yml", _yaml({"models": [_staging_model(name) for name in staged]})
    for name in staged:
        yield MODELS / "staging" / f"{STAGING}{name}.sql", _staging_sql(name)
    yield MODELS / "marts" / "marts.yml", _yaml({"models": [_mart(name) for name in QUESTIONS]})
    for name in QUESTIONS:
        yield MODELS / "marts" / f"{MART}{name}.sql", mart_sql(name)


def mart_sql(name: str) -> str:
    """Return the SQL of a question's model: references to staging models, and variables of the project."""
    referring = _TABLE.sub(lambda found: f"{{{{ ref('{STAGING}{found[1]}') }}}}", QUESTIONS[name])
    objectives = ("max_lag_ms", "target", "sample_ms", "silence_ms")
    values = {each: f"{{{{ var('korvet_{each}') }}}}" for each in objectives}
    return Template(referring).substitute(values).lstrip()


def _staging_sql(name: str) -> str:
    columns = ",\n       ".join(f"`{column.name}`" for column in TABLES[name].columns)
    return f"SELECT {columns}\nFROM {{{{ source('korvet', '{name}') }}}}\n"


def _source() -> dict[str, Any]:
    return {
        "name": "korvet",
        "description": "The stored tables of korvet, in Delta or in a catalog.",
        "schema": "{{ var('korvet_schema') }}",
        "quoting": {"identifier": True},
        "tables": [
            {
                "name": table.name,
                "identifier": "{{ (var('korvet_folder') ~ '/' if var('korvet_folder') else '') ~ '"
                + table.name
                + "' }}",
                "description": table.about,
                "columns": [_column(column, table.name) for column in table.columns],
            }
            for table in TABLES.values()
        ],
    }


def _staging_model(name: str) -> dict[str, Any]:
    table, key = TABLES[name], _KEYS[name]
    return {
        "name": STAGING + name,
        "description": table.about,
        "data_tests": [_unique(key)],
        "columns": [_column(column, not_null=column.name in key) for column in table.columns],
    }


def _mart(name: str) -> dict[str, Any]:
    answer = ANSWERS[name]
    return {
        "name": MART + name,
        "description": answer.question,
        "data_tests": [_unique(answer.key)],
        "columns": [_column(column, not_null=column.name in answer.key) for column in answer.columns],
    }


def _column(column: Column, table: str = "", *, not_null: bool = False) -> dict[str, Any]:
    """The properties of a column. table: the source that it is in, whose values are checked."""
    tests: list[Any] = ["not_null"] if not_null else []
    values = _VALUES.get((table, column.name))
    if values is not None:
        tests.append({"accepted_values": {"arguments": {"values": list(values)}}})
    found = {"name": column.name, "data_type": column.type, "description": column.about, "quote": True}
    return {**found, "data_tests": tests} if tests else found


def _unique(key: Iterable[str]) -> dict[str, Any]:
    return {"unique_key": {"arguments": {"columns": [f"`{name}`" for name in key]}}}


def _yaml(content: Mapping[str, Any]) -> str:
    text = yaml.safe_dump({"version": 2, **content}, sort_keys=False, width=110, allow_unicode=True)
    return f"# Generated by tools/dbt_models.py.\n{text}"

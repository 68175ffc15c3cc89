"""What users can do with korvet in Spark, and the tests that show it, for docs/reference/spark-versions.md.

A test is `FILE::FUNCTION` of tests/spark, with all its cases, or `FILE::FUNCTION[CASE]`. Long tests with
cases are named case by case. These run with each version of Spark (tools/spark_versions.py), other long tests
do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that users can do.

    tests: all of them pass if it works. refusals: tests that run only if it does not work, and record the
    message that users get as the property `refused`.
    """

    what: str
    tests: tuple[str, ...]
    refusals: tuple[str, ...] = ()


def _once(*forms: str) -> tuple[str, ...]:
    return tuple(f"test_export::test_once_in_every_mode[{form}]" for form in forms)


def _continuous(*forms: str) -> tuple[str, ...]:
    return tuple(f"test_export::test_continuous_is_exactly_once[{form}]" for form in forms)


CAPABILITIES: Final = (
    Capability(
        "read a topic in batch",
        (
            "test_source::test_every_kind_of_own_entry",
            "test_source::test_many_pages_of_both_kinds",
            "test_source::test_several_topics_and_offset_limits",
            "test_batches::test_batches_and_native_entries",
        ),
    ),
    Capability("read a topic as a stream", ("test_source::test_stream_gives_every_record_once",)),
    Capability(
        "limits of a trigger (`maxRecordsPerTrigger` and the like)",
        ("test_source::test_stream_gives_every_record_once",),
        ("test_source_session::test_limits_are_refused",),
    ),
    Capability(
        "`pushdown=true`",
        ("test_source::test_pushdown_reads_only_what_is_asked",),
        ("test_source_session::test_pushdown_is_refused",),
    ),
    Capability("`isolationLevel=read_committed`", ("test_source_session::test_transactions[wait]",)),
    Capability(
        "`openTransactions=pass`",
        (
            "test_source_session::test_transactions[pass]",
            "test_open_transactions::test_tables_as_the_coordinator_answers",
        ),
    ),
    Capability(
        "write to a topic in batch",
        (
            "test_sink_live::test_all_readers_agree",
            "test_sink_live::test_keys_and_no_keys",
            "test_sink_live::test_a_job_id_makes_a_job_repeatable",
        ),
    ),
    Capability("write to a topic as a stream", ("test_sink_live::test_a_batch_that_is_replayed",)),
    Capability("SQL: `CREATE TEMPORARY VIEW`", ("test_registration::test_a_view_in_sql",)),
    Capability("SQL: `INSERT INTO` a view", ("test_sink_live::test_sql",)),
    Capability(
        "SQL: `INSERT INTO` some columns of a view",
        ("test_sink_live::test_sql_with_some_columns",),
        ("test_sink_live::test_some_columns_are_refused",),
    ),
    Capability("SQL: `CREATE TABLE`", (), ("test_registration::test_a_table_in_sql_is_refused",)),
    Capability(
        "tables of consumer groups",
        (
            "test_reckoned_tables::test_every_column_as_reckoned",
            "test_golden::test_from_redis",
            "test_week::test_status_and_lag",
            "test_week::test_status_of_groups",
            "test_week::test_anomalies",
            "test_week::test_rebalances_and_members",
        ),
    ),
    Capability(
        "stored tables: `korvet tables refresh`", ("test_all_tables::test_all_tables_kept_in_a_folder",)
    ),
    Capability("`korvet report`", ("test_report::test_report_on_nothing_and_on_groups",)),
    Capability("export to Parquet, JSON, CSV", _once("parquet", "json", "csv")),
    Capability("export to Delta", _once("delta")),
    Capability("export to Iceberg", _once("iceberg")),
    Capability("export to a database (JDBC)", _once("jdbc")),
    Capability("continuous export to Parquet, JSON, CSV", _continuous("parquet", "json", "csv")),
    Capability("continuous export to Delta", _continuous("delta")),
    Capability("continuous export to Iceberg", _continuous("iceberg")),
    Capability("continuous export to a database (JDBC)", _continuous("jdbc")),
    Capability(
        "`korvet report --bootstrap`: tables through the official Kafka connector",
        ("test_golden::test_by_the_official_connector", "test_live::test_the_report_through_kafka"),
        ("test_live::test_connect_has_no_admin_client",),
    ),
    Capability(
        "spark-submit to a cluster of workers",
        ("test_cluster_jobs::test_export_and_report_on_two_workers",),
    ),
)


def named_tests() -> tuple[str, ...]:
    """All tests that say what works."""
    return tuple(test for one in CAPABILITIES for test in (*one.tests, *one.refusals))


def tests_named_in(suite: str) -> tuple[str, ...]:
    """The tests of a file that say what works, without the name of the file."""
    names = (test.removeprefix(f"{suite}::") for test in named_tests() if test.startswith(f"{suite}::"))
    return tuple(dict.fromkeys(names))

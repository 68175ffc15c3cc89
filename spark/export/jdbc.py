"""Exports to a database: rows go to a staging table first, then into the target in one transaction.

Spark's JDBC writer commits task by task: a failed job leaves some of its rows, and a repeated job writes them
twice. Here the rows of a batch and its number are committed together.
"""

from __future__ import annotations

import re
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from korvet.spark.export.target import ERROR, HOW_TO_REPLACE, OVERWRITE, ExportError, Target
from korvet.spark.session.driver_calls import DriverError, in_driver
from korvet.spark.session.failures import NEEDS_JAR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.export.checkpoint import Identity
    from korvet.spark.session.driver_calls import Calls

    # What a transaction does with a statement (java.sql.Statement).
    Step = Callable[[Calls, Any], Any]

# This table has one row per continuous export into the database: the number of its newest batch.
PROGRESS_TABLE = "korvet_exports"
_DIALECTS: Final = "org.apache.spark.sql.jdbc.JdbcDialects"
_OPTIONS: Final = "org.apache.spark.sql.execution.datasources.jdbc.JdbcOptionsInWrite"
_COMMONS: Final = "org.apache.commons.lang3"
# What precedes the name of a table: catalog and schema, which may be quoted.
_SCHEMA = re.compile(r"""(?:(?:"[^"]*"|`[^`]*`|\[[^]]*\]|[^".`\[\]]+)\.)*""")
# Spark finds a driver outside its class path only by the name of its class.
DRIVERS = {
    "derby": "org.apache.derby.jdbc.EmbeddedDriver",
    "duckdb": "org.duckdb.DuckDBDriver",
    "h2": "org.h2.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "oracle": "oracle.jdbc.OracleDriver",
    "postgresql": "org.postgresql.Driver",
    "sqlite": "org.sqlite.JDBC",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
}


@dataclass(frozen=True, slots=True)
class JdbcSink:
    """A table of a database with the columns of the frame, created if it is missing.

    Every method raises ExportError without the driver or a connection, and DriverError with the database's
    message if the database refuses a statement.
    """

    target: Target

    def write(self, frame: DataFrame) -> None:
        """Write all rows in one transaction. Raises ExportError if the table exists with the mode `error`."""
        database = _Database(frame.sparkSession, self.target)
        if self.target.mode == ERROR and database.exists(database.table):
            raise ExportError(f"table {database.table} exists; {HOW_TO_REPLACE}")
        with _staged(database, frame, f"once_{uuid.uuid4().hex[:12]}") as staging:
            database.make(database.table, frame)
            emptying = [update(f"DELETE FROM {database.table}")] if self.target.mode == OVERWRITE else []
            database.transaction(*emptying, database.copying(staging, frame))

    def append(self, frame: DataFrame, identity: Identity, batch_id: int) -> None:
        """Write the rows of one batch, unless the table has it. A repeated batch has the same rows.

        The staging table is that of the export, and replaces one that a killed run left, if no other run can
        use it now.
        """
        database = _Database(frame.sparkSession, self.target)
        if batch_id <= database.progress(identity.export_id):
            return
        suffix = identity.export_id[:12] + ("" if identity.is_locked else f"_{uuid.uuid4().hex[:8]}")
        with _staged(database, frame, suffix) as staging:
            database.make(database.table, frame)
            database.transaction(
                database.advancing(identity.export_id, batch_id),
                database.copying(staging, frame),
            )

    def exists(self, spark: SparkSession) -> bool:
        """Return whether the table exists."""
        database = _Database(spark, self.target)
        return database.exists(database.table)


@contextmanager
def _staged(database: _Database, frame: DataFrame, suffix: str) -> Iterator[str]:
    """The rows in a staging table, which is dropped at the end of the block."""
    staging = database.beside(f"korvet_{suffix}")
    try:
        database.fill(staging, frame)
        yield staging
    except BaseException:
        # The database itself may have failed.
        with suppress(DriverError, ExportError):
            database.drop(staging)
        raise
    database.drop(staging)


class _Database:
    """Statements to one database, over connections that Spark's driver opens as for its JDBC writer."""

    def __init__(self, spark: SparkSession, target: Target) -> None:
        assert target.table is not None
        self.table = target.table
        self._spark = spark
        self._options = dict(target.options)
        self._url = target.location
        self._options.setdefault("driver", DRIVERS.get(self._url.split(":")[1], ""))
        if not self._options["driver"]:
            del self._options["driver"]

    def beside(self, name: str) -> str:
        """Return a table of that name in the schema of the target.

        The name doesn't contain the target's, which may be quoted, or so long that databases would cut the
        name down to it.
        """
        found = _SCHEMA.match(self.table)
        return (found[0] if found else "") + name

    def fill(self, table: str, frame: DataFrame) -> None:
        """Replace a table with the frame's rows."""
        self._save(table, frame, "overwrite")

    def make(self, table: str, frame: DataFrame) -> None:
        """Create the empty table unless it exists. One that another export creates meanwhile stays."""
        if not self.exists(table):
            self._save(table, frame.limit(0), "append")

    def _save(self, table: str, frame: DataFrame, mode: str) -> None:
        writer = frame.write.format("jdbc").mode(mode).option("url", self._url)
        writer.options(**self._options).option("dbtable", table).save()

    def exists(self, table: str) -> bool:
        """Return whether the database has the table."""

        def query(calls: Calls, statement: Any) -> None:
            statement.executeQuery(self._dialect(calls).getTableExistsQuery(table)).close()

        try:
            self.transaction(query)
        except DriverError:
            return False
        return True

    def drop(self, table: str) -> None:
        """Drop a table."""
        self.transaction(update(f"DROP TABLE {table}"))

    def progress(self, export_id: str) -> int:
        """Return the number of an export's newest batch; -1 before the first."""
        if not self.exists(PROGRESS_TABLE):
            columns = "(export_id VARCHAR(64) NOT NULL PRIMARY KEY, batch_id NUMERIC(19) NOT NULL)"
            self.transaction(update(f"CREATE TABLE {PROGRESS_TABLE} {columns}"))

        def newest(_: Calls, statement: Any) -> Any:
            # Has a row in any case.
            rows = statement.executeQuery(
                f"SELECT MAX(batch_id) FROM {PROGRESS_TABLE} WHERE export_id = '{export_id}'"
            )
            rows.next()
            number = rows.getString(1)
            rows.close()
            return number

        found = self.transaction(newest)
        if found is not None:
            return int(found)
        self.transaction(update(f"INSERT INTO {PROGRESS_TABLE} VALUES ('{export_id}', -1)"))
        return -1

    def advancing(self, export_id: str, batch_id: int) -> Step:
        """Return the step that notes a batch. It fails if another run of the export has noted the batch."""
        noted = f"UPDATE {PROGRESS_TABLE} SET batch_id = {batch_id}"
        where = f"WHERE export_id = '{export_id}' AND batch_id < {batch_id}"
        overtaken = f"another run of the export has written batch {batch_id}"

        def advance(calls: Calls, statement: Any) -> None:
            changed = statement.executeUpdate(f"{noted} {where}")
            calls.static(f"{_COMMONS}.Validate", "inclusiveBetween", 1, 1, changed, overtaken)

        return advance

    def copying(self, staging: str, frame: DataFrame) -> Step:
        """Return the step that copies all rows of the staging table into the target."""

        def quoted(calls: Calls) -> Any:
            names, dialect = calls.new("java.util.ArrayList"), self._dialect(calls)
            for name in frame.columns:
                names.add(dialect.quoteIdentifier(name))
            return calls.static(f"{_COMMONS}.StringUtils", "join", names, ", ")

        names = in_driver(self._spark, quoted)
        return update(f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {staging}")

    def transaction(self, *steps: Step) -> Any:
        """Take steps in one transaction. Returns the last one's result. A failed step undoes the others."""

        def taken(calls: Calls) -> Any:
            connection = self._connection(calls)
            calls.on_failure(connection.rollback)
            connection.setAutoCommit(False)
            statement, result = connection.createStatement(), None
            for step in steps:
                result = step(calls, statement)
            connection.commit()
            return result

        try:
            return in_driver(self._spark, taken)
        except DriverError:
            self._check_connection()
            raise

    def _check_connection(self) -> None:
        """Raises ExportError if the database can't be connected to."""
        try:
            in_driver(self._spark, lambda calls: self._connection(calls).isReadOnly())
        except DriverError as error:
            raise _no_connection(self._url, error) from error

    def _connection(self, calls: Calls) -> Any:
        """A connection that is closed at the end."""
        options = calls.new("java.util.HashMap")
        for name, value in {**self._options, "url": self._url, "dbtable": self.table}.items():
            options.put(name, value)
        given = calls.static("org.apache.spark.api.python.PythonUtils", "toScalaMap", options)
        connect = self._dialect(calls).createConnectionFactory(calls.new(_OPTIONS, given))
        connection = connect.apply(-1)
        calls.at_the_end(connection.close)
        return connection

    def _dialect(self, calls: Calls) -> Any:
        return calls.static(_DIALECTS, "get", self._url)


def update(sql: str) -> Step:
    """Return the step of a statement without a result."""

    def execute(_: Calls, statement: Any) -> None:
        statement.executeUpdate(sql)

    return execute


def _no_connection(url: str, error: DriverError) -> ExportError:
    database = ":".join(url.split(":")[:2])
    if "java.lang.ClassNotFoundException" in error.classes or "No suitable driver" in str(error):
        return ExportError(
            f"no JDBC driver for {database}: {NEEDS_JAR}; for an uncommon driver, also give its class by "
            "--option driver=CLASS"
        )
    return ExportError(f"no connection to {database}: {error}")

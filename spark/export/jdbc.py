"""Exports to a database: rows go to a staging table first, then into the target in one transaction.

Spark's JDBC writer commits task by task: a failed job leaves some of its rows, and a repeated job writes them
twice. Here the rows of a batch and its number are committed together.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from korvet.spark.export.target import ERROR, HOW_TO_REPLACE, OVERWRITE, ExportError, Target
from korvet.spark.session.failures import NEEDS_JAR, root_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

# This table has one row per continuous export into the database: the number of its newest batch.
PROGRESS_TABLE = "korvet_exports"
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

    Every method raises ExportError without the driver or a connection, and Py4JJavaError with the database's
    message if the database refuses a statement.
    """

    target: Target

    def write(self, frame: DataFrame) -> None:
        """Write all rows in one transaction. Raises ExportError if the table exists with the mode `error`."""
        database = _Database(frame.sparkSession, self.target)
        if self.target.mode == ERROR and database.exists(database.table):
            raise ExportError(f"table {database.table} exists; {HOW_TO_REPLACE}")
        with _staged(database, frame, "once") as staging:
            database.make(database.table, frame)
            with database.transaction() as connection:
                if self.target.mode == OVERWRITE:
                    database.execute(connection, f"DELETE FROM {database.table}")
                database.copy(connection, staging, frame)

    def append(self, frame: DataFrame, export_id: str, batch_id: int) -> None:
        """Write the rows of one batch, unless the table has it. A repeated batch has the same rows."""
        database = _Database(frame.sparkSession, self.target)
        if batch_id <= database.progress(export_id):
            return
        with _staged(database, frame, export_id[:12]) as staging:
            database.make(database.table, frame)
            with database.transaction() as connection:
                database.execute(
                    connection,
                    f"UPDATE {PROGRESS_TABLE} SET batch_id = {batch_id} WHERE export_id = '{export_id}'",
                )
                database.copy(connection, staging, frame)

    def exists(self, spark: SparkSession) -> bool:
        """Return whether the table exists."""
        database = _Database(spark, self.target)
        return database.exists(database.table)


@contextmanager
def _staged(database: _Database, frame: DataFrame, suffix: str) -> Iterator[str]:
    """The rows in a staging table, which is dropped at the end of the block."""
    staging = f"{database.table}_korvet_{suffix}"
    try:
        database.fill(staging, frame)
        yield staging
    except BaseException:
        # The database itself may have failed.
        with suppress(Py4JJavaError, ExportError):
            database.drop(staging)
        raise
    database.drop(staging)


class _Database:
    """Statements to one database, over connections that Spark opens as for its JDBC writer."""

    def __init__(self, spark: SparkSession, target: Target) -> None:
        assert target.table is not None
        self.table = target.table
        self._spark = spark
        self._options = dict(target.options)
        self._url = target.location
        self._options.setdefault("driver", DRIVERS.get(self._url.split(":")[1], ""))
        if not self._options["driver"]:
            del self._options["driver"]
        jvm: Any = spark._jvm
        self._dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._url)
        try:
            scala_map = jvm.PythonUtils.toScalaMap({**self._options, "url": self._url, "dbtable": self.table})
            options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcOptionsInWrite(scala_map)
            self._connect = self._dialect.createConnectionFactory(options)
        except Py4JJavaError as error:
            raise _no_driver(self._url, error) from error

    def fill(self, table: str, frame: DataFrame) -> None:
        """Replace a table with the frame's rows."""
        writer = frame.write.format("jdbc").mode("overwrite").option("url", self._url)
        writer.options(**self._options).option("dbtable", table).save()

    def make(self, table: str, frame: DataFrame) -> None:
        """Create the empty table unless it exists."""
        if not self.exists(table):
            self.fill(table, frame.limit(0))

    def exists(self, table: str) -> bool:
        """Return whether the database has the table."""
        with self.transaction() as connection:
            return self._has(connection, self._dialect.getTableExistsQuery(table))

    def drop(self, table: str) -> None:
        """Drop a table."""
        with self.transaction() as connection:
            self.execute(connection, f"DROP TABLE {table}")

    def progress(self, export_id: str) -> int:
        """Return the number of an export's newest batch; -1 before the first."""
        if not self.exists(PROGRESS_TABLE):
            with self.transaction() as connection:
                self.execute(
                    connection,
                    f"CREATE TABLE {PROGRESS_TABLE} "
                    "(export_id VARCHAR(64) NOT NULL PRIMARY KEY, batch_id NUMERIC(19) NOT NULL)",
                )
        with self.transaction() as connection:
            statement = connection.createStatement()
            query = f"SELECT batch_id FROM {PROGRESS_TABLE} WHERE export_id = '{export_id}'"
            found = statement.executeQuery(query)
            if found.next():
                return int(found.getLong(1))
            self.execute(connection, f"INSERT INTO {PROGRESS_TABLE} VALUES ('{export_id}', -1)")
        return -1

    def copy(self, connection: Any, staging: str, frame: DataFrame) -> None:
        """Copy all rows of the staging table into the target."""
        names = ", ".join(str(self._dialect.quoteIdentifier(name)) for name in frame.columns)
        self.execute(connection, f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {staging}")

    @staticmethod
    def execute(connection: Any, sql: str) -> None:
        """Execute one statement without a result."""
        statement = connection.createStatement()
        try:
            statement.executeUpdate(sql)
        finally:
            statement.close()

    @staticmethod
    def _has(connection: Any, query: str) -> bool:
        statement = connection.createStatement()
        try:
            statement.executeQuery(query)
        except Py4JJavaError as error:
            if not _is_sql_error(error):
                raise
            return False
        finally:
            statement.close()
        return True

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Return a connection; commit its statements at the end of the block, or roll all of them back."""
        try:
            connection = self._connect.apply(-1)
        except Py4JJavaError as error:
            raise _no_driver(self._url, error) from error
        try:
            connection.setAutoCommit(False)
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
        finally:
            connection.close()


def _is_sql_error(error: Py4JJavaError) -> bool:
    kind = error.java_exception.getClass()
    while kind is not None:
        if kind.getName() == "java.sql.SQLException":
            return True
        kind = kind.getSuperclass()
    return False


def _no_driver(url: str, error: Py4JJavaError) -> ExportError:
    cause = root_of(error.java_exception)
    database = ":".join(url.split(":")[:2])
    text = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
    if "ClassNotFound" in text or "No suitable driver" in text:
        return ExportError(
            f"no JDBC driver for {database}: {NEEDS_JAR}; for an uncommon driver, also give its class by "
            "--option driver=CLASS"
        )
    return ExportError(f"no connection to {database}: {text}")

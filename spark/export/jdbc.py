"""Exports to a database: rows go to a staging table first, then into the target in one transaction.

Spark's own JDBC writer commits task by task, so that a failed job leaves a part behind and a repeated one
writes it twice. Here the rows of a batch and the note that it is done are committed together.
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

# One row per continuous export into this database: the newest batch that is in its table.
PROGRESS_TABLE = "korvet_exports"
# Spark finds a driver outside its own class path only by the name of its class.
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
    """A table of a database. Columns are those of the frame; the table is made when it is not there.

    Everything raises ExportError when the database or its driver can't be had, Py4JJavaError with the
    database's own words when it refuses a statement.
    """

    target: Target

    def write(self, frame: DataFrame) -> None:
        """All rows, in one transaction; ExportError when the table exists and the mode is `error`."""
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
        """The rows of one batch, unless they are there already. A repeated batch has the same rows."""
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
        """Whether the table is there."""
        database = _Database(spark, self.target)
        return database.exists(database.table)


@contextmanager
def _staged(database: _Database, frame: DataFrame, suffix: str) -> Iterator[str]:
    """The rows in a table of their own until the end of the block, however that ends."""
    staging = f"{database.table}_korvet_{suffix}"
    try:
        database.fill(staging, frame)
        yield staging
    except BaseException:
        # What went wrong may be that there is no database any more.
        with suppress(Py4JJavaError, ExportError):
            database.drop(staging)
        raise
    database.drop(staging)


class _Database:
    """Statements to one database, over connections that Spark opens as it does for its own writer."""

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
        """Replace a table by the frame's rows."""
        writer = frame.write.format("jdbc").mode("overwrite").option("url", self._url)
        writer.options(**self._options).option("dbtable", table).save()

    def make(self, table: str, frame: DataFrame) -> None:
        """Make the table, empty, unless it exists."""
        if not self.exists(table):
            self.fill(table, frame.limit(0))

    def exists(self, table: str) -> bool:
        """Whether the database has the table."""
        with self.transaction() as connection:
            return self._has(connection, self._dialect.getTableExistsQuery(table))

    def drop(self, table: str) -> None:
        """Remove a table."""
        with self.transaction() as connection:
            self.execute(connection, f"DROP TABLE {table}")

    def progress(self, export_id: str) -> int:
        """The newest batch of an export that is in its table; -1 before the first."""
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
        """All rows of the staging table into the target."""
        names = ", ".join(str(self._dialect.quoteIdentifier(name)) for name in frame.columns)
        self.execute(connection, f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {staging}")

    @staticmethod
    def execute(connection: Any, sql: str) -> None:
        """One statement without an answer."""
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
        """A connection whose statements are committed together at the end, or none of them."""
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
    place = ":".join(url.split(":")[:2])
    text = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
    if "ClassNotFound" in text or "No suitable driver" in text:
        return ExportError(
            f"no JDBC driver for {place}: {NEEDS_JAR}, and the name of its class by --option driver=CLASS "
            "where it is not a usual one"
        )
    return ExportError(f"no connection to {place}: {text}")

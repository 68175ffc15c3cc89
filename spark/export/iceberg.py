"""Exports to Iceberg tables: Spark writes Parquet files, PyIceberg adds them to the table in one commit.

Iceberg's module for Spark does not load in Spark 4.2 and newer, because it implements an interface that has
become a class. PyIceberg supports the usual catalogs, by its configuration file or by options.
"""

from __future__ import annotations

import uuid
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from korvet.spark.export.target import ERROR, HOW_TO_REPLACE, OVERWRITE, ExportError, Target
from korvet.spark.session.failures import in_one_line
from korvet.spark.session.folders import Folder
from korvet.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.export.checkpoint import Identity

# Prefix of a table property per continuous export: the number of its newest batch.
PROGRESS = "korvet.export."
# Prefix of the columns that split the written files by partition.
_SPLIT = "korvet_partition_"
# Packages whose exceptions are about a catalog or its storage: PyIceberg, and the clients that it uses.
_REACHES = frozenset({"pyiceberg", "sqlalchemy", "requests", "botocore", "thrift", "google", "pyarrow"})


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """A table of an Iceberg catalog, created if it is missing. Raises ExportError without PyIceberg."""

    target: Target

    def write(self, frame: DataFrame) -> None:
        """Write all rows in one commit. Raises ExportError if the table exists with the mode `error`."""
        with _iceberg_errors(self.target):
            table = self._table(frame, may_exist=self.target.mode != ERROR)
            files = self._files(table, frame, "once")
            with table.transaction() as transaction:
                if self.target.mode == OVERWRITE:
                    _delete_all(transaction)
                if files:
                    transaction.add_files(files, check_duplicate_files=False)

    def append(self, frame: DataFrame, identity: Identity, batch_id: int) -> None:
        """Write the rows of one batch, unless the table has it. A repeated batch has the same rows.

        Raises ExportError if another run writes the batch at the same time.
        """
        with _iceberg_errors(self.target):
            table = self._table(frame, may_exist=True)
            name = PROGRESS + identity.export_id
            if batch_id <= int(table.properties.get(name, "-1")):
                return
            files = self._files(table, frame, f"{identity.export_id}-{batch_id}")
            if not files:
                return
            _refuse_overtaken(table, name, batch_id)
            with table.transaction() as transaction:
                transaction.set_properties({name: str(batch_id)})
                transaction.add_files(files, check_duplicate_files=False)

    def exists(self, spark: SparkSession) -> bool:
        """Return whether the table exists."""
        with _iceberg_errors(self.target):
            return bool(_catalog(self.target).table_exists(self._name))

    @property
    def _name(self) -> str:
        assert self.target.table is not None
        return self.target.table

    def _table(self, frame: DataFrame, *, may_exist: bool) -> Any:
        catalog = _catalog(self.target)
        if catalog.table_exists(self._name):
            if not may_exist:
                raise ExportError(f"table {self._name} exists; {HOW_TO_REPLACE}")
            return catalog.load_table(self._name)
        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        schema = arrow_schema(frame.schema)
        with catalog.create_table_transaction(self._name, schema=schema) as transaction:
            if self.target.partition_by:
                with transaction.update_spec() as spec:
                    for column in self.target.partition_by:
                        spec.add_identity(column)
        return catalog.load_table(self._name)

    def _files(self, table: Any, frame: DataFrame, name: str) -> list[str]:
        """Write the rows as Parquet files of the table; their URIs. Files of an interrupted attempt stay.

        The folder is a new one: files of another attempt may be part of the table. Iceberg requires that a
        file has rows of one partition, and contains the partition columns.
        """
        attempt = uuid.uuid4().hex
        folder = Folder(frame.sparkSession, f"{table.location()}/data/korvet/{name}-{attempt}")
        # PyIceberg refuses 96-bit timestamps, Spark's default.
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        columns = [table.schema().find_column_name(part.source_id) for part in table.spec().fields]
        copies = {f"{_SPLIT}{number}": sf.col(f"`{column}`") for number, column in enumerate(columns)}
        split = frame.withColumns(copies) if copies else frame
        split.write.partitionBy(*copies).parquet(folder.location)
        # Hadoop returns file:/path; other libraries expect file:///path.
        return [uri.replace("file:/", "file:///", 1) for uri in folder.files()]


def _catalog(target: Target) -> Any:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 (an extra, only for this format)

    return load_catalog(target.location, **target.options)


def _refuse_overtaken(table: Any, name: str, batch_id: int) -> None:
    """Let a commit fail if the property `name` reaches the batch meanwhile.

    PyIceberg repeats a commit that another one has overtaken, and refreshes the table before. Before 0.12, it
    refuses the commit.
    """
    refresh = table.refresh

    def refreshed() -> Any:
        found = refresh()
        if batch_id <= int(found.properties.get(name, "-1")):
            raise ExportError(f"another run of the export has written batch {batch_id}")
        return found

    table.refresh = refreshed


def _delete_all(transaction: Any) -> None:
    from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 (an extra, only for this format)

    with warnings.catch_warnings():
        # PyIceberg warns if the table is empty.
        warnings.simplefilter("ignore")
        transaction.delete(AlwaysTrue())


@contextmanager
def _iceberg_errors(target: Target) -> Iterator[None]:
    """Turn errors that a user can fix into one line (ExportError)."""
    if find_spec("pyiceberg") is None:
        raise ExportError("the format iceberg needs PyIceberg: pip install 'korvet[iceberg]'")
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        # ValueError: an unknown catalog, missing properties, or columns that don't match the table.
        is_known = isinstance(error, ValueError | OSError)
        if not is_known and type(error).__module__.partition(".")[0] not in _REACHES:
            raise
        raise ExportError(f"Iceberg catalog {target.location}: {in_one_line(error)}") from error

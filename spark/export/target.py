"""The target of an export, and the conversion of rows to what its format can store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from korvet.spark.session.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

PARQUET, DELTA, ICEBERG, CSV, JSON, JDBC = FORMATS = ("parquet", "delta", "iceberg", "csv", "json", "jdbc")
ERROR, APPEND, OVERWRITE = MODES = ("error", "append", "overwrite")
HOW_TO_REPLACE = "use --mode append or --mode overwrite, or choose another target"
BASE64, HEX, TEXT = BYTES_AS = ("base64", "hex", "text")


class ExportError(ValueError):
    """An export that can't be done. The message states the reason and a remedy, without passwords."""

    def __init__(self, message: str) -> None:
        super().__init__(redacted(message))


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an export.

    location: a folder (path or URI); for JDBC the URL, for Iceberg the catalog's name in PyIceberg.
    table: for JDBC and Iceberg. options: of Spark's writer, for Iceberg of the catalog.
    bytes_as: encoding of bytes in CSV and JSON. Raises ExportError if these contradict.
    """

    location: str = field(repr=False)
    form: str = PARQUET
    mode: str = ERROR
    table: str | None = None
    partition_by: tuple[str, ...] = ()
    bytes_as: str = BASE64
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, value, known in (
            ("format", self.form, FORMATS),
            ("mode", self.mode, MODES),
            ("encoding of bytes", self.bytes_as, BYTES_AS),
        ):
            if value not in known:
                raise ExportError(f"the {name} must be one of {', '.join(known)}, not {value!r}")
        if (self.table is None) == (self.form in {ICEBERG, JDBC}):
            raise ExportError(
                f"the format {self.form} needs the name of a table"
                if self.table is None
                else f"the format {self.form} has no table names: it writes the folder {self.location}"
            )
        if self.form == JDBC and self.partition_by:
            raise ExportError(
                "a database partitions its tables itself: leave out the columns to partition by"
            )
        if self.form == ICEBERG and not all((self.table or "").rpartition(".")):
            raise ExportError(f"{self.table} is not a table of a catalog: use NAMESPACE.TABLE")
        if self.form == JDBC and not self.location.startswith("jdbc:"):
            raise ExportError(
                f"{self.location} is not the URL of a database, like jdbc:postgresql://host/name"
            )

    @property
    def name(self) -> str:
        """The target in messages, without options and passwords."""
        return f"{self.form} {redacted(self.location)}" + (f" table {self.table}" if self.table else "")

    def check_columns(self, frame: DataFrame) -> None:
        """Raises ExportError if the frame lacks a column to partition by."""
        missing = [name for name in self.partition_by if name not in frame.columns]
        if missing:
            raise ExportError(
                f"no column {', '.join(missing)} to partition by; columns are {', '.join(frame.columns)}"
            )

    def as_held(self, frame: DataFrame) -> DataFrame:
        """Return the frame with its columns converted to types of the format.

        CSV and JSON have no bytes. CSV and databases have no nested values; these become JSON. Strings for
        databases lose their NUL characters, which some databases refuse.
        """
        if self.form in {PARQUET, DELTA, ICEBERG}:
            return frame
        columns = []
        for column in frame.schema:
            value = sf.col(f"`{column.name}`")
            kind = column.dataType
            if self.form != JDBC or not isinstance(kind, BinaryType):
                value = _without_bytes(value, kind, self.bytes_as)
            if self.form != JSON and isinstance(kind, ArrayType | MapType | StructType):
                value = sf.to_json(value)
            if self.form == JDBC and isinstance(kind, StringType | ArrayType | MapType | StructType):
                value = sf.translate(value, "\0", "")
            columns.append(value.alias(column.name))
        return frame.select(*columns)


def _without_bytes(value: Column, kind: DataType, bytes_as: str) -> Column:
    if isinstance(kind, BinaryType):
        if bytes_as == TEXT:
            return sf.make_valid_utf8(value.cast("string"))
        return sf.hex(value) if bytes_as == HEX else sf.base64(value)
    if isinstance(kind, ArrayType) and _has_bytes(kind):
        return sf.transform(value, lambda item: _without_bytes(item, kind.elementType, bytes_as))
    if isinstance(kind, MapType) and _has_bytes(kind):
        return sf.transform_values(value, lambda _, item: _without_bytes(item, kind.valueType, bytes_as))
    if isinstance(kind, StructType) and _has_bytes(kind):
        parts = [
            _without_bytes(value[part.name], part.dataType, bytes_as).alias(part.name) for part in kind.fields
        ]
        return sf.when(value.isNotNull(), sf.struct(*parts))
    return value


def _has_bytes(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_bytes(kind.elementType)
    if isinstance(kind, MapType):
        return _has_bytes(kind.valueType)
    if isinstance(kind, StructType):
        return any(_has_bytes(part.dataType) for part in kind.fields)
    return isinstance(kind, BinaryType)

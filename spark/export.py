"""Topics to files: one batch, in Parquet, JSON lines or CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMATS = ("parquet", "json", "csv")
MODES = ("error", "append", "overwrite")


def export_batch(records: DataFrame, target: str, form: str = "parquet", mode: str = "error") -> None:
    """Write records to the folder `target`, in the columns of the Kafka source.

    JSON and CSV have no bytes: there key, value and header values are base64, and CSV has the headers as
    JSON.

    Raises ValueError for an unknown form or mode, Spark's AnalysisException when the target exists and the
    mode is `error`.
    """
    if form not in FORMATS:
        raise ValueError(f"the format is one of {', '.join(FORMATS)}, not {form!r}")
    if mode not in MODES:
        raise ValueError(f"the mode is one of {', '.join(MODES)}, not {mode!r}")
    writer = _as_text(records, form).write.mode(mode).format(form)
    if form == "csv":
        writer = writer.option("header", "true").option("nullValue", "").option("emptyValue", '""')
    writer.save(target)


def _as_text(records: DataFrame, form: str) -> DataFrame:
    if form == "parquet":
        return records
    headers: Column = sf.transform(
        "headers",
        lambda header: sf.struct(header["key"].alias("key"), sf.base64(header["value"]).alias("value")),
    )
    if form == "csv":
        headers = sf.to_json(headers)
    return records.withColumns({"key": sf.base64("key"), "value": sf.base64("value"), "headers": headers})

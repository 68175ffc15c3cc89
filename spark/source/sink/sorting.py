"""The rows of a task in an order that doesn't depend on how they arrived (external merge sort)."""

from __future__ import annotations

import heapq
import pickle
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from korvet.spark.source.sink.columns import SinkRow

# Bytes of rows in memory; more rows go to temporary files.
RUN_BYTES = 64 << 20
# A row of Python objects, besides its contents.
_ROW_BYTES = 400
# The same of a header.
_HEADER_BYTES = 150


def sorted_rows(rows: Iterable[SinkRow]) -> Iterator[SinkRow]:
    """Yield the rows by topic, partition, key, timestamp, value and headers."""
    with ExitStack() as stack:
        runs: list[IO[bytes]] = []
        run: list[SinkRow] = []
        size = 0
        for row in rows:
            run.append(row)
            size += _size(row)
            if size >= RUN_BYTES:
                runs.append(_stored(sorted(run, key=_order), stack.enter_context(TemporaryFile())))
                run, size = [], 0
        run.sort(key=_order)
        yield from heapq.merge(*map(_loaded, runs), run, key=_order)


def _size(row: SinkRow) -> int:
    headers = sum(_HEADER_BYTES + len(name or "") + len(value or b"") for name, value in row.headers)
    return _ROW_BYTES + len(row.key or b"") + len(row.value or b"") + headers


def _stored(run: list[SinkRow], file: IO[bytes]) -> IO[bytes]:
    for row in run:
        pickle.dump(row, file)
    file.seek(0)
    return file


def _loaded(file: IO[bytes]) -> Iterator[SinkRow]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return


def _order(row: SinkRow) -> tuple[Any, ...]:
    """Nulls come first."""
    headers = tuple((name or "", _nulls_first(value)) for name, value in row.headers)
    columns = (row.topic, row.partition, row.key, row.timestamp_ms, row.value)
    return (*map(_nulls_first, columns), headers)


def _nulls_first(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)

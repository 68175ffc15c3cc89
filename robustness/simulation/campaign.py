"""Runs many seeds in several processes, and remembers which have passed, so that it can be resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from robustness.campaign import sources
from robustness.simulation import worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Seeds that one process runs before it reports.
CHUNK: Final = 50
# Limits the memory of a process: the brokers of its runs never end, and stay in memory.
_CHUNKS_OF_A_PROCESS: Final = 4
# Failures after which a campaign ends: more of them have the same causes.
MOST_FAILURES: Final = 20
_REPORT_S: Final = 10.0


class Passed:
    """The chunks of seeds that passed with these sources, in a file."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._key = sources(root)
        self._chunks: set[int] = set()
        if file.exists():
            stored = json.loads(file.read_text())
            if stored["key"] == self._key:
                self._chunks = set(stored["chunks"])

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._chunks

    def add(self, chunk: int) -> None:
        """Remember a chunk, in the file as well. A crash leaves the file as it was before or after."""
        self._chunks.add(chunk)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"key": self._key, "chunks": sorted(self._chunks)}))
        new.replace(self._file)


def run(
    seeds: range,
    folder: Path,
    passed: Passed | None,
    say: Callable[[str], None],
    processes: int | None = None,
) -> list[worker.Result]:
    """Run all seeds, except chunks that have passed. Returns the failed ones."""
    chunks = [
        chunk
        for chunk in _chunks(seeds)
        if passed is None or len(chunk) < CHUNK or chunk[0] // CHUNK not in passed
    ]
    failed: list[worker.Result] = []
    count, began_s = 0, time.monotonic()
    said_s = began_s
    for chunk, results in _results(chunks, folder, processes or os.cpu_count() or 1):
        bad = [result for result in results if result.failure]
        failed += bad
        count += len(results)
        for result in bad:
            say(f"seed {result.seed}:\n{result.failure}")
        if passed is not None and not bad and len(chunk) == CHUNK:
            passed.add(chunk[0] // CHUNK)
        now_s = time.monotonic()
        if now_s - said_s >= _REPORT_S:
            said_s = now_s
            say(f"{count} seeds, {count / (now_s - began_s) * 60:.0f} per minute, {len(failed)} failed")
        if len(failed) >= MOST_FAILURES:
            break
    return failed


def _chunks(seeds: range) -> Iterator[range]:
    """Yields the seeds in chunks; whole ones begin at a multiple of their size."""
    first = seeds.start
    while first < seeds.stop:
        end = min((first // CHUNK + 1) * CHUNK, seeds.stop)
        yield range(first, end)
        first = end


def _results(
    chunks: list[range], folder: Path, processes: int
) -> Iterator[tuple[range, list[worker.Result]]]:
    """Yields each chunk with its results, as they come."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(processes, worker.prepare, maxtasksperchild=_CHUNKS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(partial(_run_chunk, folder), chunks)


def _run_chunk(folder: Path, chunk: range) -> tuple[range, list[worker.Result]]:
    return chunk, worker.run_some(chunk, folder)

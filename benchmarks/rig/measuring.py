"""Samples of interleaved rounds, CPU time of processes, and the resulting rows."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.processes import tree_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KORVET = "korvet"
# Units of figures whose smaller values are better.
SMALLER_IS_BETTER = {"ms", "s", "B", "KB", "%", "µs"}


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one run of one side: figures by name, CPU seconds per process."""

    values: dict[str, float]
    cpu: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: every side's values by round. `cpu`: CPU time of each side's processes by round."""

    benchmark: str
    figure: str
    unit: str
    values: dict[str, list[float]]
    cpu: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def median(self, side: str = KORVET) -> float:
        return statistics.median(self.values[side])

    def ratio(self, reference: str, side: str = KORVET) -> float:
        """A side's value divided by another's: the median of the rounds' ratios."""
        return statistics.median(self.ratios(reference, side))

    def ratios(self, reference: str, side: str = KORVET) -> list[float]:
        """Returns a side's value divided by another's, by round."""
        pairs = zip(self.values[side], self.values[reference], strict=True)
        return [ours / theirs for ours, theirs in pairs if theirs]

    def cpu_median(self, side: str) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self.cpu.get(side, {}).items()}


class Meter:
    """Measures the CPU seconds of processes and their children between the start and the end of a block."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self.used: dict[str, float] = {}
        self.took_s = 0.0

    def __enter__(self) -> Meter:
        self._began = time.monotonic()
        self._before = self._read()
        return self

    def __exit__(self, *error: object) -> None:
        self.took_s = time.monotonic() - self._began
        self.used = {name: seconds - self._before[name] for name, seconds in self._read().items()}

    def _read(self) -> dict[str, float]:
        apart = self._pids.values()
        return {name: tree_cpu_seconds(pid, apart) for name, pid in self._pids.items()}

    def per_million(self, records: int, client_s: float | None = None) -> dict[str, float]:
        """Returns CPU seconds per million records, including the load client's if given."""
        used = self.used if client_s is None else {**self.used, "client": client_s}
        return {name: seconds * 1e6 / records for name, seconds in used.items()}


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process, without memory shared with others."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * sum(
        int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))
    )


def main_thread_seconds(client: Any) -> float:
    """Returns the CPU time of a Redis's main thread so far. client: of redis-py."""
    info = client.info("cpu")
    return float(info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"])


def interleaved(
    benchmark: str, sides: Mapping[str, Callable[[], Sample]], rounds: int, units: Mapping[str, str]
) -> Iterator[Row]:
    """Run every side in each round, in rotating order. Returns one row per figure of `units`.

    A side without a figure is left out of its row.
    """
    samples: dict[str, list[Sample]] = {side: [] for side in sides}
    order = list(sides)
    for number in range(rounds):
        first = number % len(order)
        for side in order[first:] + order[:first]:
            samples[side].append(sides[side]())
    for figure, unit in units.items():
        values = {
            side: [sample.values[figure] for sample in taken]
            for side, taken in samples.items()
            if figure in taken[0].values
        }
        cpu = {
            side: {name: [sample.cpu[name] for sample in taken] for name in taken[0].cpu}
            for side, taken in samples.items()
        }
        yield Row(benchmark, figure, unit, values, cpu)
        samples = {side: [Sample(sample.values) for sample in taken] for side, taken in samples.items()}

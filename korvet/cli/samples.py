"""Reads a page in Prometheus's text format 0.0.4."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?\Z")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}


class Samples:
    """The samples of a page, by name."""

    def __init__(self, text: str) -> None:
        """Lines that aren't samples are skipped."""
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        for line in text.split("\n"):
            found = None if line.startswith("#") else _SAMPLE.match(line)
            if found is not None:
                self._samples[found[1]].append((dict(_labels(found[2] or "")), _number(found[3])))

    def sums(self, name: str, *labels: str, node_id: int | None = None) -> dict[tuple[str, ...], float]:
        """Returns the samples of a name by these labels, summed over all other labels. A label that a sample
        lacks is empty. `node_id`: without those that a page of several brokers has of other brokers.
        """
        sums: dict[tuple[str, ...], float] = defaultdict(float)
        for found, value in self._samples.get(name, ()):
            if node_id is None or found.get("node_id", str(node_id)) == str(node_id):
                sums[tuple(found.get(label, "") for label in labels)] += value
        return sums


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for found in _LABEL.finditer(text):
        yield found[1], _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), found[2])


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")

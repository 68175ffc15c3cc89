"""Runs of acquired records as the response names them. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.redis_groups.share import Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def cut_runs(runs: Iterable[Run], batch_size: int) -> Iterator[Run]:
    """The runs in pieces of at most `batch_size` records, the size that the client acknowledges at once; 0 or
    less for no limit.
    """
    for run in runs:
        first, size = run.first, batch_size if batch_size > 0 else run.last - run.first + 1
        while first <= run.last:
            yield Run(first, min(run.last, first + size - 1), run.deliveries)
            first += size

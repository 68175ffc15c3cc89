"""The process's own metrics, from the operating system, Python and the supervisor."""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from korvet import __version__, supervisor
from korvet.metrics.families import process
from korvet.metrics.family import Samples
from korvet.observe.lifecycle import Phase

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from korvet.observe.lifecycle import Lifecycle

_PAGE_BYTES: Final = resource.getpagesize()
# Linux has these; other systems report the largest resident memory only.
_MEMORY: Final = Path("/proc/self/statm")
_FILES: Final = Path("/proc/self/fd")
# The import of this module is one of the first things that a broker does.
_START_S: Final = time.time()


def collect() -> Iterator[Samples]:
    """See Collector."""
    yield Samples(process.BUILD, [(process.BUILD.text(__version__, platform.python_version()), 1)])
    yield process.START_TIME.single(_START_S)
    yield process.CPU_SECONDS.single(time.process_time())
    virtual_bytes, resident_bytes = _memory_bytes()
    yield process.RESIDENT_BYTES.single(resident_bytes)
    yield process.VIRTUAL_BYTES.single(virtual_bytes)
    yield process.OPEN_FILES.single(len(os.listdir(_FILES)) if _FILES.exists() else float("nan"))
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield process.MAX_FILES.single(float("inf") if most_files == resource.RLIM_INFINITY else most_files)
    for family, key in (
        (process.GC_COLLECTIONS, "collections"),
        (process.GC_COLLECTED, "collected"),
        (process.GC_UNCOLLECTABLE, "uncollectable"),
    ):
        counts = enumerate(gc.get_stats())
        yield Samples(family, [(family.text(generation), count[key]) for generation, count in counts])
    yield process.BACKGROUND_FAILURES.by_label(dict(sorted(supervisor.failures.items())))


def collect_phase(lifecycle: Lifecycle) -> Iterator[Samples]:
    """See Collector."""
    rows = [(process.PHASE.text(phase.value), int(phase is lifecycle.phase)) for phase in Phase]
    yield Samples(process.PHASE, rows)


def collect_exceptions(failures: Counter[str]) -> Iterator[Samples]:
    """See Collector. `failures`: Dispatcher.failures."""
    yield process.REQUEST_EXCEPTIONS.by_label(dict(sorted(failures.items())))


def _memory_bytes() -> tuple[float, float]:
    """The virtual and the resident memory; NaN if the system does not report it."""
    try:
        pages = _MEMORY.read_text("ascii").split()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float("nan"), peak if sys.platform == "darwin" else peak * 1024
    return int(pages[0]) * _PAGE_BYTES, int(pages[1]) * _PAGE_BYTES

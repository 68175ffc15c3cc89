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
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType, Samples
from korvet.observe.lifecycle import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.observe.lifecycle import Lifecycle

_BUILD: Final = declare(
    "korvet_build_info", "Versions of korvet and Python.", "version", "python", kind=MetricType.INFO
)
_PHASE: Final = declare(
    "korvet_broker_phase",
    "1 for the phase that the broker is in (starting, loading, serving, draining, stopping), 0 for others.",
    "phase",
)
_START_TIME: Final = declare(
    "process_start_time_seconds", "Start of the process, in seconds since the epoch."
)
_CPU_SECONDS: Final = declare(
    "process_cpu_seconds_total",
    "Processor time of the process, user and system, in seconds.",
    kind=MetricType.COUNTER,
)
_RESIDENT_BYTES: Final = declare("process_resident_memory_bytes", "Resident memory of the process in bytes.")
_VIRTUAL_BYTES: Final = declare("process_virtual_memory_bytes", "Virtual memory of the process in bytes.")
_OPEN_FILES: Final = declare("process_open_fds", "Open files of the process, with connections.")
_MAX_FILES: Final = declare("process_max_fds", "Limit of open files of the process.")
_GC: Final = {
    "collections": declare(
        "python_gc_collections_total",
        "Garbage collections by generation.",
        "generation",
        kind=MetricType.COUNTER,
    ),
    "collected": declare(
        "python_gc_objects_collected_total",
        "Objects that garbage collections freed, by generation.",
        "generation",
        kind=MetricType.COUNTER,
    ),
    "uncollectable": declare(
        "python_gc_objects_uncollectable_total",
        "Objects that garbage collections could not free, by generation.",
        "generation",
        kind=MetricType.COUNTER,
    ),
}
"""By key of gc.get_stats."""
_BACKGROUND_FAILURES: Final = declare(
    "korvet_background_failures_total",
    "Exceptions that ended background work, by the name of the work. The work is started again.",
    "work",
    kind=MetricType.COUNTER,
)

_PAGE_BYTES: Final = resource.getpagesize()
# Linux has these; other systems report the largest resident memory only.
_MEMORY: Final = Path("/proc/self/statm")
_FILES: Final = Path("/proc/self/fd")
# The import of this module is one of the first things that a broker does.
_START_S: Final = time.time()


def collect() -> Iterator[Samples]:
    """See Collector."""
    yield Samples(_BUILD, [(_BUILD.text(__version__, platform.python_version()), 1)])
    yield _START_TIME.single(_START_S)
    yield _CPU_SECONDS.single(time.process_time())
    virtual_bytes, resident_bytes = _memory_bytes()
    yield _RESIDENT_BYTES.single(resident_bytes)
    yield _VIRTUAL_BYTES.single(virtual_bytes)
    yield _OPEN_FILES.single(len(os.listdir(_FILES)) if _FILES.exists() else float("nan"))
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _MAX_FILES.single(float("inf") if most_files == resource.RLIM_INFINITY else most_files)
    for key, family in _GC.items():
        counts = enumerate(gc.get_stats())
        yield Samples(family, [(family.text(generation), count[key]) for generation, count in counts])
    yield _BACKGROUND_FAILURES.by_label(dict(sorted(supervisor.failures.items())))


def collect_phase(lifecycle: Lifecycle) -> Iterator[Samples]:
    """See Collector."""
    rows = [(_PHASE.text(phase.value), int(phase is lifecycle.phase)) for phase in Phase]
    yield Samples(_PHASE, rows)


def _memory_bytes() -> tuple[float, float]:
    """The virtual and the resident memory; NaN if the system does not report it."""
    try:
        pages = _MEMORY.read_text("ascii").split()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float("nan"), peak if sys.platform == "darwin" else peak * 1024
    return int(pages[0]) * _PAGE_BYTES, int(pages[1]) * _PAGE_BYTES

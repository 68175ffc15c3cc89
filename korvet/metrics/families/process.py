"""The process: build, memory, processor time, event loop, background work, and the scrape itself."""

from __future__ import annotations

from typing import Final

from korvet.metrics.family import Family, Kind

BUILD: Final = Family("korvet_build_info", Kind.INFO, "Versions of korvet and Python.", ("version", "python"))
PHASE: Final = Family(
    "korvet_broker_phase",
    Kind.GAUGE,
    "1 for the phase that the broker is in (starting, loading, serving, draining, stopping), 0 for others.",
    ("phase",),
)
START_TIME: Final = Family(
    "process_start_time_seconds", Kind.GAUGE, "Start of the process, in seconds since the epoch."
)
CPU_SECONDS: Final = Family(
    "process_cpu_seconds_total", Kind.COUNTER, "Processor time of the process, user and system, in seconds."
)
RESIDENT_BYTES: Final = Family(
    "process_resident_memory_bytes", Kind.GAUGE, "Resident memory of the process in bytes."
)
VIRTUAL_BYTES: Final = Family(
    "process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory of the process in bytes."
)
OPEN_FILES: Final = Family("process_open_fds", Kind.GAUGE, "Open files of the process, with connections.")
MAX_FILES: Final = Family("process_max_fds", Kind.GAUGE, "Limit of open files of the process.")
GC_COLLECTIONS: Final = Family(
    "python_gc_collections_total", Kind.COUNTER, "Garbage collections by generation.", ("generation",)
)
GC_COLLECTED: Final = Family(
    "python_gc_objects_collected_total",
    Kind.COUNTER,
    "Objects that garbage collections freed, by generation.",
    ("generation",),
)
GC_UNCOLLECTABLE: Final = Family(
    "python_gc_objects_uncollectable_total",
    Kind.COUNTER,
    "Objects that garbage collections could not free, by generation.",
    ("generation",),
)
LOOP_LAG: Final = Family(
    "korvet_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "By how much the event loop runs a due callback late, in seconds; measured ten times a second.",
)
BACKGROUND_FAILURES: Final = Family(
    "korvet_background_failures_total",
    Kind.COUNTER,
    "Exceptions that ended background work, by the name of the work. The work is started again.",
    ("work",),
)
REQUEST_EXCEPTIONS: Final = Family(
    "korvet_request_exceptions_total",
    Kind.COUNTER,
    "Unexpected exceptions of request handlers, which clients see as UNKNOWN_SERVER_ERROR, by API.",
    ("api",),
)
COLLECTOR_FAILURES: Final = Family(
    "korvet_collector_failures_total",
    Kind.COUNTER,
    "Exceptions of collectors, which leave their metrics out of a scrape.",
    ("collector",),
)
READY: Final = Family("korvet_ready", Kind.GAUGE, "1 if the broker is ready for clients, as /readyz says.")
READY_CHECK: Final = Family(
    "korvet_ready_check",
    Kind.GAUGE,
    "1 for each condition of readiness that is met, 0 for each that is not.",
    ("check",),
)
SCRAPE_SECONDS: Final = Family(
    "korvet_scrape_duration_seconds",
    Kind.GAUGE,
    "The time that the previous page of metrics took, with the time of other work in between, in seconds.",
)
ADMIN_REQUESTS: Final = Family(
    "korvet_admin_requests_total",
    Kind.COUNTER,
    "Answered requests of the admin endpoint; the path is empty for pages that do not exist.",
    ("path", "code"),
)
BROKER_UP: Final = Family(
    "korvet_broker_up",
    Kind.GAUGE,
    "Of `--processes`: 1 for each broker process whose page of metrics could be read, else 0.",
    ("node_id",),
)

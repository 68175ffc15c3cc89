"""jemalloc and its options, for server programs.

korvet preloads jemalloc if a program was built with the C library's allocator, like the program in the wheel.
glibc's malloc is slow with thousands of small objects: with jemalloc, the default of Valkey and Redis on
Linux, an XADD costs a quarter less CPU time.

The options make new records reuse the memory that retention, compaction and deleted topics freed. By default
jemalloc doesn't cut a stream node from a large freed extent, and returns extents of 8 MB to Linux at once.
The first access to each page of new records then costs up to as much CPU time as their XADD, and more on a
virtual machine whose host reclaims free memory.
"""

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from korvet.embedded.binary import ServerBinary

_LIBRARY = "libjemalloc.so.2"
_PRELOAD = "LD_PRELOAD"
_OPTIONS = "MALLOC_CONF"
_OPTIONS_WHEN_BUILT_IN = (
    "JE_MALLOC_CONF"  # The jemalloc in the source of Redis and Valkey has prefixed names.
)
# Freed memory stays for a minute; after that, Linux may reclaim it when memory is short (madvise(2),
# MADV_FREE). An allocation may be cut from a free extent of any size. A `muzzy_decay_ms` of -1 also keeps
# extents above `oversize_threshold` (8 MB), an option that has no effect on this in jemalloc 5.3.0.
_REUSE_FREED = "dirty_decay_ms:60000,muzzy_decay_ms:-1,lg_extent_max_active_fit:64"


def server_environment(binary: ServerBinary, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns `environ`, plus jemalloc if the program and the machine allow it.

    If `environ` already preloads a library or sets options for jemalloc, korvet doesn't override them.
    """
    if binary.allocator.startswith("jemalloc"):
        return {_OPTIONS: _REUSE_FREED, _OPTIONS_WHEN_BUILT_IN: _REUSE_FREED, **environ}
    library = find_jemalloc() if binary.allocator == "libc" and not environ.get(_PRELOAD) else None
    if library is None:
        return dict(environ)
    return {_OPTIONS: _REUSE_FREED, **environ, _PRELOAD: str(library)}


def find_jemalloc() -> Path | None:
    """Returns the jemalloc of the packages `libjemalloc2` or `jemalloc`; None if there is none."""
    if sys.platform != "linux":
        return None
    return next((path for folder in _folders() if (path := folder / _LIBRARY).is_file()), None)


def _folders() -> Iterator[Path]:
    yield Path("/usr/local/lib")
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        yield Path("/usr/lib", multiarch)
    yield Path("/usr/lib64")
    yield Path("/usr/lib")

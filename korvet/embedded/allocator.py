"""jemalloc and its options, for server programs.

Preloaded where a program was built with the C library's allocator, as the one in the wheel is.

glibc's malloc is slow at the thousands of small objects of a queued transaction: an XADD in MULTI costs a
quarter less CPU time with jemalloc, which Valkey and Redis are built with where they can choose.

What retention, compaction and deleted topics give up is then taken by the next records. As it comes,
jemalloc does not: a freed stretch of memory is too large for it to cut a stream's node from, and one of 8 MB
goes back to Linux at once. Every page of new records is touched anew, which costs up to as much CPU time as
their XADD, and more on a virtual machine whose host takes free memory back.
"""

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from korvet.embedded.binary import ServerBinary

_LIBRARY = "libjemalloc.so.2"
_PRELOAD = "LD_PRELOAD"
_OPTIONS = "MALLOC_CONF"
_OPTIONS_WHEN_BUILT_IN = "JE_MALLOC_CONF"  # Redis and Valkey prefix the names of the jemalloc in their source
# Freed memory stays for a minute, and is then Linux's to take when it runs short (madvise(2), MADV_FREE); an
# allocation may be cut from a free stretch of any size. A `muzzy_decay_ms` of -1 also keeps stretches above
# `oversize_threshold` (8 MB), an option that has no effect on this in jemalloc 5.3.0.
_REUSE_FREED = "dirty_decay_ms:60000,muzzy_decay_ms:-1,lg_extent_max_active_fit:64"


def server_environment(binary: ServerBinary, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment to run a server program in: `environ`, with jemalloc where program and machine allow.

    Who preloads something of their own, or has options for jemalloc, has chosen already.
    """
    if binary.allocator.startswith("jemalloc"):
        return {_OPTIONS: _REUSE_FREED, _OPTIONS_WHEN_BUILT_IN: _REUSE_FREED, **environ}
    library = find_jemalloc() if binary.allocator == "libc" and not environ.get(_PRELOAD) else None
    if library is None:
        return dict(environ)
    return {_OPTIONS: _REUSE_FREED, **environ, _PRELOAD: str(library)}


def find_jemalloc() -> Path | None:
    """The machine's jemalloc, as the packages `libjemalloc2` or `jemalloc` install it; None without one."""
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

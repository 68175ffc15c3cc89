"""jemalloc for a server program that was built with the C library's allocator, as the one in the wheel is.

glibc's malloc is slow at the thousands of small objects of a queued transaction: an XADD in MULTI costs a
quarter less CPU time with jemalloc, which Valkey and Redis are built with where they can choose.

It keeps for a minute what was freed, instead of ten seconds: what retention, compaction and deleted topics
give up is taken by the next records, and on a virtual machine whose host reclaims memory a page that is
touched anew costs more than the record in it.
"""

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from korvet.embedded.binary import ServerBinary

_LIBRARY = "libjemalloc.so.2"
_PRELOAD = "LD_PRELOAD"
_OPTIONS = "MALLOC_CONF"
_KEEP_FREED = "dirty_decay_ms:60000"


def server_environment(binary: ServerBinary, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment to run a server program in: `environ`, with jemalloc where program and machine allow.

    Who preloads something of their own, or has options for jemalloc, has chosen already.
    """
    library = find_jemalloc() if binary.allocator == "libc" and not environ.get(_PRELOAD) else None
    if library is None:
        return dict(environ)
    return {_OPTIONS: _KEEP_FREED, **environ, _PRELOAD: str(library)}


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

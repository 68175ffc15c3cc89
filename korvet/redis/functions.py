"""The source of the Redis Function libraries, and the names of their functions.

Brokers of two releases may use one Redis. So each release has its own library: the names of the library and
of its functions end in a digest of the source. The library `korvet` is for applications.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources
from typing import Final

PUBLIC_LIBRARY: Final = "korvet"
"""The library for applications. In releases with format 3 only, it is also the one for brokers."""
_DIGEST_BYTES: Final = 4
_VERSIONED: Final = re.compile(r"korvet_[0-9a-f]{8}")
# Packages with a folder lua/, and files in it that all functions use, each built on those before it.
_SHARED: Final = (
    "log: _entries _meta _index _producers _appending",
    "redis_groups: _groups",
    "cluster: _cluster",
    "redis: _memory",
)
# Files that register functions, with the parts that only they use. Each row is its own scope: Lua allows 200
# local names in one scope, including those of the shared files.
_SCOPES: Final = (
    "log: _records unpack append",
    "log: mark",
    "log: reindex",
    "log: lookup retention rate",
    "log: ordinals",
    "log: watermark",
    "log: _shadow _shadow_groups _shadow_entries compact",
    "redis_groups: _group_view projection",
    "redis_groups: moved_groups group_backlogs accepted",
    "redis_groups: share",
    "cluster: lease",
    "cluster: registry",
    "cluster: security",
    "redis: probe",
)
_PUBLIC_SCOPES: Final = ("log: native_append",)


@functools.cache
def library_digest() -> str:
    """What the names of the library and its functions end in: 8 hexadecimal digits."""
    return hashlib.blake2b(_code(_SCOPES).encode(), digest_size=_DIGEST_BYTES).hexdigest()


@functools.cache
def library_name() -> str:
    """The name of the library that brokers of this release call."""
    return f"{PUBLIC_LIBRARY}_{library_digest()}"


def is_versioned(library: str) -> bool:
    """Whether a library's name is that of a release's library for brokers."""
    return _VERSIONED.fullmatch(library) is not None


@functools.cache
def named(function: str) -> str:
    """The name in Redis of a function for brokers, such as korvet_append."""
    return f"{function}_{library_digest()}"


@functools.cache
def library_source() -> str:
    """The code of the library for brokers: the shared files, then a scope for each subject."""
    return f"#!lua name={library_name()}\nlocal RELEASE = '_{library_digest()}'\n{_code(_SCOPES)}"


@functools.cache
def public_source() -> str:
    """The code of the library for applications: korvet_xadd."""
    return f"#!lua name={PUBLIC_LIBRARY}\n{_code(_PUBLIC_SCOPES)}"


def _code(scopes: tuple[str, ...]) -> str:
    return "".join([*map(_files, _SHARED), *(f"do\n{_files(row)}end\n" for row in scopes)])


def _files(row: str) -> str:
    """The text of the files of a row."""
    package, names = row.split(": ")
    return "".join(_file(package, name) for name in names.split())


@functools.cache
def _file(package: str, name: str) -> str:
    """The text of one file, with its name on a line of its own."""
    text = resources.files("korvet").joinpath(package, "lua", f"{name}.lua").read_text("utf-8")
    return f"-- {name}.lua\n{text}"

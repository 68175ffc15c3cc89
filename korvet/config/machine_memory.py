"""The memory that this process may use: that of the machine, or of the container (control group, Linux)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

# Above this, version 1 means "no limit": the largest multiple of the page size.
_UNLIMITED: Final = 2**62
# A group may use memory above memory.high, but only after long waits.
_FILES: Final = ("memory.max", "memory.high")


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Returns the machine's memory, or the smallest limit of this process's control groups and their
    ancestors, if that is less. `root`: the folder that has /proc and the paths in it.
    """
    physical_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical_bytes, *_group_limits(root)])


def _group_limits(root: Path) -> Iterator[int]:
    try:
        groups = (root / "proc/self/cgroup").read_text()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for controllers, path in re.findall(r"^\d+:([^:]*):(.*)$", groups, re.MULTILINE):
        if not controllers:
            for folder in _folders(root, mounts, "cgroup2", path):
                yield from (limit for name in _FILES if (limit := _number(folder / name)) is not None)
        elif "memory" in controllers.split(","):
            for folder in _folders(root, mounts, "cgroup", path):
                limit = _number(folder / "memory.limit_in_bytes")
                if limit is not None and limit < _UNLIMITED:
                    yield limit


def _folders(root: Path, mounts: list[str], kind: str, path: str) -> Iterator[Path]:
    """Returns the folders of a group and of its ancestors, as far as they are visible in this container."""
    for mount in mounts:
        place, _, source = mount.partition(" - ")
        if source.split()[0] != kind or (kind == "cgroup" and "memory" not in source.split()[-1].split(",")):
            continue
        mounted, point = place.split()[3:5]
        inside = PurePosixPath(path)
        # In a container without a namespace of its own, the path is that of the host; the mount begins there.
        if inside.is_relative_to(mounted):
            inside = inside.relative_to(mounted)
        relative = str(inside).lstrip("/")
        folder = root / point.lstrip("/")
        yield folder
        if ".." in inside.parts:
            continue
        for part in PurePosixPath(relative).parts:
            folder /= part
            yield folder


def _number(file: Path) -> int | None:
    """Returns the number in a file; None if there is no such file, or it says `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None

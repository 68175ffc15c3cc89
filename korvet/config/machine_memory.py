"""The memory that this process may use: that of the machine, or of the container (control group, Linux). And
whether the kernel ended a process because it was used up.
"""

import os
import re
import signal
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


def memory_kills(root: Path = Path("/")) -> int | None:
    """Returns how many processes of this process's control group the kernel has killed because memory was
    used up; None if the system does not count them. `root`: as above.
    """
    kills = None
    for folder, is_version_2 in _groups(root):
        try:
            lines = (folder / ("memory.events" if is_version_2 else "memory.oom_control")).read_text()
        except OSError:
            continue
        # The groups after this one are inside it.
        found = re.search(r"^oom_kill (\d+)$", lines, re.MULTILINE)
        kills = int(found[1]) if found else kills
    return kills


def described_end(status: int, kills_before: int | None) -> str:
    """Returns how a process of this control group has ended. `status`: if negative, the signal that ended it.
    `kills_before`: `memory_kills` while it ran.
    """
    if status >= 0:
        return f"exited with status {status}"
    reason = ""
    if status == -signal.SIGKILL:
        kills = memory_kills()
        if kills is None or kills_before is None:
            reason = " (by the system, if the memory of the machine or container was used up)"
        elif kills > kills_before:
            reason = " (by the system: the memory of the machine or container was used up)"
    return f"was ended by {signal.Signals(-status).name}{reason}"


def _group_limits(root: Path) -> Iterator[int]:
    for folder, is_version_2 in _groups(root):
        if is_version_2:
            yield from (limit for name in _FILES if (limit := _number(folder / name)) is not None)
        else:
            limit = _number(folder / "memory.limit_in_bytes")
            if limit is not None and limit < _UNLIMITED:
                yield limit


def _groups(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yields the folders of the groups that limit this process's memory, the outer before the inner ones, and
    whether they are of version 2.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for controllers, path in re.findall(r"^\d+:([^:]*):(.*)$", groups, re.MULTILINE):
        if not controllers:
            yield from ((folder, True) for folder in _folders(root, mounts, "cgroup2", path))
        elif "memory" in controllers.split(","):
            yield from ((folder, False) for folder in _folders(root, mounts, "cgroup", path))


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

"""A control group with a limit of memory, like that of a container."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.polling import until

_ROOT = Path("/sys/fs/cgroup")
# Of both versions: the folder below which a group is made, and the files for limit and use.
_VERSIONS = (
    (_ROOT / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    (_ROOT, "memory.max", "memory.current", "memory.events"),
)


class Container:
    """A group of processes that may use `limit_bytes` of memory together. Skips the test where none can be
    made.
    """

    def __init__(self, limit_bytes: int) -> None:
        made = filter(None, (_make(*version, limit_bytes) for version in _VERSIONS))
        found = next(made, None)
        if found is None:
            pytest.skip("no control group with a limit of memory can be made here")
        self.folder, self._use, self._events = found

    @property
    def prefix(self) -> list[str]:
        """A command prefix that puts the command into the group."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs")]

    @property
    def used_bytes(self) -> int:
        """Memory in use, including cached pages of files."""
        return int((self.folder / self._use).read_text())

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed because the memory was used up."""
        events = dict(line.split() for line in (self.folder / self._events).read_text().splitlines())
        return int(events["oom_kill"])

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        until(self._removed, 10, "the group is removed")

    def _removed(self) -> bool:
        try:
            self.folder.rmdir()
        except OSError:
            return False
        return True


def _make(parent: Path, limit: str, use: str, events: str, limit_bytes: int) -> tuple[Path, str, str] | None:
    if os.geteuid() != 0 or not (parent / "cgroup.procs").exists():
        return None
    folder = parent / f"korvet-test-{uuid4().hex[:8]}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(limit_bytes))
    except OSError:
        if folder.exists():
            folder.rmdir()
        return None
    return folder, use, events

"""The memory of machine and container, and how it is divided."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from korvet.config import machine_memory
from korvet.config.loading import load
from korvet.config.machine_memory import described_end, machine_memory_bytes, memory_kills
from korvet.config.memory_plan import needed_bytes
from korvet.config.settings import Config

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20
GB = 1 << 30
PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
V2 = "30 24 0:26 {mounted} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 25 0:30 {mounted} /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
V1_CPU = "34 25 0:31 / /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu\n"


def machine(root: Path, groups: str, mounts: str, files: dict[str, str]) -> int:
    """The memory of a made-up machine. `files`: text by path below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(mounts)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return machine_memory_bytes(root)


@pytest.mark.parametrize(
    ("mounted", "path", "files", "expected"),
    [
        pytest.param("/", "/", {"memory.max": str(150 * MB)}, 150 * MB, id="in a namespace"),
        pytest.param("/", "/a/b", {"a/b/memory.max": "max", "a/memory.max": "9000"}, 9_000, id="ancestor"),
        pytest.param("/", "/a", {"a/memory.max": "9000", "a/memory.high": "8000"}, 8_000, id="memory.high"),
        pytest.param("/", "/a", {"a/memory.max": "max"}, PHYSICAL, id="no limit"),
        pytest.param("/", "/a", {"a/memory.max": str(2 * PHYSICAL)}, PHYSICAL, id="above the machine's"),
        pytest.param("/pod/a", "/pod/a", {"memory.max": "9000"}, 9_000, id="container without namespace"),
        pytest.param("/", "/../other", {"memory.max": "9000"}, 9_000, id="moved out of the namespace"),
        pytest.param("/", "/a", {}, PHYSICAL, id="no controller"),
    ],
)
def test_version_2(tmp_path: Path, mounted: str, path: str, files: dict[str, str], expected: int) -> None:
    assert machine(tmp_path, f"0::{path}\n", V2.format(mounted=mounted), files) == expected


@pytest.mark.parametrize(
    ("mounted", "path", "files", "expected"),
    [
        ("/", "/a/b", {"memory/a/b/memory.limit_in_bytes": "9223372036854771712"}, PHYSICAL),
        ("/", "/a/b", {"memory/a/memory.limit_in_bytes": "9000"}, 9_000),
        ("/docker/1", "/docker/1", {"memory/memory.limit_in_bytes": "9000"}, 9_000),
        ("/", "/a", {"cpu/a/memory.limit_in_bytes": "9000"}, PHYSICAL),
    ],
)
def test_version_1(tmp_path: Path, mounted: str, path: str, files: dict[str, str], expected: int) -> None:
    groups = f"5:cpu:{path}\n4:memory:{path}\n0::/\n"
    assert machine(tmp_path, groups, V1_CPU + V1.format(mounted=mounted), files) == expected


def test_without_groups(tmp_path: Path) -> None:
    assert machine_memory_bytes(tmp_path) == PHYSICAL
    assert memory_kills(tmp_path) is None


def test_kills_are_those_of_the_own_group(tmp_path: Path) -> None:
    counted = {
        "a/memory.events": "oom 9\noom_kill 7",
        "a/b/memory.events": "low 0\noom_kill 3\noom_group_kill 1",
    }
    machine(tmp_path / "2", "0::/a/b\n", V2.format(mounted="/"), counted)
    assert memory_kills(tmp_path / "2") == 3
    counted = {"memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4"}
    machine(tmp_path / "1", "4:memory:/a\n0::/\n", V1.format(mounted="/"), counted)
    assert memory_kills(tmp_path / "1") == 4
    # Before Linux 4.13.
    machine(
        tmp_path / "0",
        "4:memory:/a\n",
        V1.format(mounted="/"),
        {"memory/a/memory.oom_control": "under_oom 0"},
    )
    assert memory_kills(tmp_path / "0") is None


@pytest.mark.parametrize(
    ("status", "before", "now", "expected"),
    [
        (1, 0, 1, "exited with status 1"),
        (-15, 0, 1, "was ended by SIGTERM"),
        (-9, 0, 0, "was ended by SIGKILL"),
        (
            -9,
            2,
            3,
            "was ended by SIGKILL (by the system: the memory of the machine or container was used up)",
        ),
        (
            -9,
            None,
            None,
            "was ended by SIGKILL (by the system, if the memory of the machine or container was used up)",
        ),
    ],
)
def test_how_a_process_ended(
    monkeypatch: pytest.MonkeyPatch, status: int, before: int | None, now: int | None, expected: str
) -> None:
    monkeypatch.setattr(machine_memory, "memory_kills", lambda: now)
    assert described_end(status, before) == expected


BUFFERS = ("tail_cache_bytes", "fetch_readahead_bytes", "fetch_buffer_bytes", "decompression_buffer_bytes")


def buffers(config: Config) -> int:
    return sum(getattr(config, field) for field in BUFFERS)


@pytest.mark.parametrize("memory_bytes", [150 * MB, 256 * MB, 512 * MB, GB, 4 * GB, 64 * GB])
def test_everything_fits(memory_bytes: int) -> None:
    """A broker takes 60 MB beside its buffers, and the server a third more than its data."""
    config = load(memory_bytes=memory_bytes)
    assert 60 * MB + buffers(config) + 4 * config.embedded_maxmemory / 3 < memory_bytes
    assert config.embedded_maxmemory > 0.2 * memory_bytes


def test_large_machines_have_the_defaults() -> None:
    config = load(memory_bytes=64 * GB)
    assert all(getattr(config, field) == getattr(Config(), field) for field in BUFFERS)
    assert 0.6 * 64 * GB < config.embedded_maxmemory < 0.7 * 64 * GB


def test_processes_share_the_memory() -> None:
    one, four = (load(pairs={"processes": n}, memory_bytes=GB) for n in ("1", "4"))
    assert 3 * buffers(four) < buffers(one)
    assert four.embedded_maxmemory < one.embedded_maxmemory


def test_what_the_user_sets_stays() -> None:
    pairs = {"tail.cache.bytes": str(256 * MB), "embedded.maxmemory": "0"}
    config = load(pairs=pairs, memory_bytes=150 * MB)
    assert (config.tail_cache_bytes, config.embedded_maxmemory) == (256 * MB, 0)
    assert config.fetch_buffer_bytes < Config().fetch_buffer_bytes


def test_a_server_of_ones_own_gets_no_limit() -> None:
    config = load(pairs={"redis": "redis://elsewhere:6379"}, memory_bytes=150 * MB)
    assert config.embedded_maxmemory == Config().embedded_maxmemory
    assert config.tail_cache_bytes < Config().tail_cache_bytes


def test_a_tiny_container_keeps_the_least_that_works() -> None:
    config = load(memory_bytes=32 * MB)
    assert config.embedded_maxmemory == 16 * MB
    assert needed_bytes(config) > 32 * MB


@pytest.mark.parametrize(("limit", "fits"), [("100000000", True), ("0", True), ("400000000", False)])
def test_a_chosen_limit_may_be_too_large(limit: str, *, fits: bool) -> None:
    config = load(pairs={"embedded.maxmemory": limit}, memory_bytes=512 * MB)
    assert (needed_bytes(config) <= 512 * MB) is fits

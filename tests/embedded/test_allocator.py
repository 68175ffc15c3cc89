"""The memory allocator of the embedded server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from korvet.embedded import allocator
from korvet.embedded.allocator import find_jemalloc, server_environment
from korvet.embedded.binary import find_server
from korvet.embedded.server import EmbeddedServer
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def jemalloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    library = tmp_path / "libjemalloc.so.2"
    library.touch()
    monkeypatch.setattr(allocator, "find_jemalloc", lambda: library)
    return library


def test_a_server_on_the_c_library_gets_jemalloc(jemalloc: Path) -> None:
    environ = server_environment(find_server()._replace(allocator="libc"), {"HOME": "/root"})
    assert environ == {
        "HOME": "/root",
        "LD_PRELOAD": str(jemalloc),
        "MALLOC_CONF": "dirty_decay_ms:60000,muzzy_decay_ms:-1,lg_extent_max_active_fit:64",
    }


def test_a_server_with_another_allocator_is_left_alone(jemalloc: Path) -> None:
    assert server_environment(find_server()._replace(allocator="tcmalloc-2.10"), {}) == {}


def test_a_server_with_jemalloc_gets_its_options(jemalloc: Path) -> None:
    """The options are set for the system's library and for the one in the server's source."""
    options = "dirty_decay_ms:60000,muzzy_decay_ms:-1,lg_extent_max_active_fit:64"
    environ = server_environment(find_server()._replace(allocator="jemalloc-5.3.0"), {})
    assert environ == {"MALLOC_CONF": options, "JE_MALLOC_CONF": options}


def test_who_preloads_something_has_chosen(jemalloc: Path) -> None:
    chosen = {"LD_PRELOAD": "libmimalloc.so.2"}
    assert server_environment(find_server()._replace(allocator="libc"), chosen) == chosen


def test_who_has_options_for_jemalloc_keeps_them(jemalloc: Path) -> None:
    chosen = {"MALLOC_CONF": "narenas:1"}
    environ = server_environment(find_server()._replace(allocator="libc"), chosen)
    assert environ == {"LD_PRELOAD": str(jemalloc), **chosen}
    both = {**chosen, "JE_MALLOC_CONF": "narenas:1"}
    assert server_environment(find_server()._replace(allocator="jemalloc-5.3.0"), both) == both


def test_without_jemalloc_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "find_jemalloc", lambda: None)
    assert server_environment(find_server()._replace(allocator="libc"), {"A": "b"}) == {"A": "b"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """Runs a server with jemalloc: the machine's, or the one that it was built with."""
    if sys.platform != "linux":
        pytest.skip("asks /proc")
    if find_server().allocator == "libc" and find_jemalloc() is None:
        pytest.skip("no jemalloc on this machine")
    if find_server().allocator != "libc" and not find_server().allocator.startswith("jemalloc"):
        pytest.skip(f"{find_server()} was built with {find_server().allocator}")
    running = EmbeddedServer(tmp_path)
    running.start()
    yield running
    running.stop()


def test_the_running_server_has_it(server: EmbeddedServer) -> None:
    if find_server().allocator != "libc":
        pytest.skip("brings its own")
    assert "libjemalloc" in Path(f"/proc/{server.pid}/maps").read_text()


def test_new_records_take_the_memory_of_deleted_ones(server: EmbeddedServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        # The first write to a page after the fork of a rewrite faults again.
        client.config_set("auto-aof-rewrite-percentage", 0)
        first = pages_touched_by_filling(server, client)
        client.unlink("stream")
        until(lambda: not client.info("memory")["lazyfree_pending_objects"], 20, "the stream is freed")
        assert pages_touched_by_filling(server, client) < first / 5


def pages_touched_by_filling(server: EmbeddedServer, client: redis.Redis) -> int:
    """Returns the server's page faults while it adds 64 MB of batches to a stream."""
    before = minor_faults(server.pid)
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(32):
            for _ in range(128):
                pipeline.xadd("stream", {"batch": bytes(16 << 10)})
            pipeline.execute()
    return minor_faults(server.pid) - before


def minor_faults(pid: int) -> int:
    """Returns the minor page faults of a process (`minflt` of proc_pid_stat(5))."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])

"""The memory allocator of the embedded server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from korvet.embedded import EmbeddedServer, allocator, find_server
from korvet.embedded.allocator import find_jemalloc, server_environment


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
        "MALLOC_CONF": "dirty_decay_ms:60000",
    }


def test_a_server_with_an_allocator_of_its_own_is_left_alone(jemalloc: Path) -> None:
    assert server_environment(find_server()._replace(allocator="jemalloc-5.3.0"), {}) == {}


def test_who_preloads_something_has_chosen(jemalloc: Path) -> None:
    chosen = {"LD_PRELOAD": "libmimalloc.so.2"}
    assert server_environment(find_server()._replace(allocator="libc"), chosen) == chosen


def test_who_has_options_for_jemalloc_keeps_them(jemalloc: Path) -> None:
    chosen = {"MALLOC_CONF": "narenas:1"}
    environ = server_environment(find_server()._replace(allocator="libc"), chosen)
    assert environ == {"LD_PRELOAD": str(jemalloc), **chosen}


def test_without_jemalloc_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "find_jemalloc", lambda: None)
    assert server_environment(find_server()._replace(allocator="libc"), {"A": "b"}) == {"A": "b"}


@pytest.mark.skipif(sys.platform != "linux" or find_jemalloc() is None, reason="no jemalloc on this machine")
def test_the_running_server_has_it(tmp_path: Path) -> None:
    if find_server().allocator != "libc":
        pytest.skip(f"{find_server()} was built with {find_server().allocator}")
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        assert "libjemalloc" in Path(f"/proc/{server.pid}/maps").read_text()
    finally:
        server.stop()

"""Room on a short disk: the space of deleted data comes back."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from korvet.embedded import append_only
from korvet.embedded.disk_space import DiskSpace
from korvet.embedded.room import Room
from tests.embedded.folders import DEADLINE_S, running
from tests.support.polling import until

if TYPE_CHECKING:
    import redis

MB = 1 << 20
# More than any disk has free: it is short.
ALL = 1 << 60


def file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in append_only.parts(folder))


def fill(client: "redis.Redis") -> None:
    for number in range(16):
        client.xadd(f"t:{number}", {"value": bytes([number]) * MB})


def test_the_space_of_deleted_data_comes_back(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client):
        room = Room(server.socket, DiskSpace(tmp_path, ALL))
        fill(client)
        assert not room.make(0.0), "nothing was deleted"
        client.delete(*client.keys("t:*"))
        assert not room.make(1.0), "it was asked a moment ago"
        assert room.make(100.0)
        until(lambda: file_bytes(tmp_path) < MB, DEADLINE_S, "the file is small")
        assert not room.make(200.0), "the file is small"
        fill(client)
        client.delete(*client.keys("t:*"))
        assert room.make(300.0)


def test_a_rewrite_that_frees_nothing_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some data take many times more space in the file than in memory."""
    monkeypatch.setattr("korvet.embedded.room._EXCESS", 0)
    with running(tmp_path) as (server, client):
        fill(client)
        room = Room(server.socket, DiskSpace(tmp_path, ALL))
        assert room.make(0.0)
        until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, DEADLINE_S, "it is done")
        assert not room.make(100.0)
        client.delete(*client.keys("t:*"))
        assert room.make(200.0)


def test_nothing_is_rewritten_while_the_disk_has_room(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client):
        fill(client)
        client.delete(*client.keys("t:*"))
        assert not Room(server.socket, DiskSpace(tmp_path, 1)).make(0.0)
        assert file_bytes(tmp_path) > 16 * MB


@pytest.mark.parametrize("free", [8, 100])
def test_a_rewrite_must_fit(tmp_path: Path, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as (server, client):
        fill(client)
        client.delete(*[f"t:{number}" for number in range(1, 16)])
        disk = DiskSpace(tmp_path, ALL)

        def check() -> bool:
            disk.free_bytes, disk.is_short = free * MB, True
            return False

        monkeypatch.setattr(disk, "check", check)
        assert Room(server.socket, disk).make(0.0) is (free == 100)


def test_without_a_file_nothing_is_rewritten(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client):
        client.config_set("appendonly", "no")
        assert not Room(server.socket, DiskSpace(tmp_path, ALL)).make(0.0)

"""`korvet backup --keep`: which backups stay, also if something fails on the way."""

from __future__ import annotations

import fcntl
import json
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from korvet.backup.manifest import MANIFEST, SNAPSHOT
from korvet.cli import backup as command
from tests.backup.contents import failure, fill, run, success

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.redis_server import Server


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def server(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    """A filled server. Each backup is a day after the last one."""
    server = start()
    fill(server.client, entries=10)
    days = iter(range(100))
    clock = SimpleNamespace(time=lambda: 1_769_860_800 + 86_400 * next(days))
    monkeypatch.setattr(command, "time", clock)
    return server


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def day(number: int) -> str:
    return f"202602{number:02}T120000Z"


def test_the_newest_stay(server: Server, parent: Path) -> None:
    arguments = (parent, "--redis", server.url, "--keep", "2")
    told = [json.loads(success("backup", *arguments, "--json")) for _ in range(3)]
    assert [each["folder"] for each in told] == [
        str(parent / name) for name in ("20260131T120000Z", day(1), day(2))
    ]
    assert [each["deleted"] for each in told] == [[], [], [str(parent / "20260131T120000Z")]]
    assert names(parent) == [day(1), day(2)]
    assert success("backup", *arguments).endswith(f"\ndeleted {parent / day(1)}\n")
    for name in names(parent):
        success("restore", parent / name, "--check")


def test_what_is_not_of_this_rotation_stays(server: Server, parent: Path) -> None:
    arguments = (parent, "--redis", server.url, "--keep", "1")
    for _ in range(2):
        success("backup", parent, "--redis", server.url, "--keep", "2")
    success("backup", parent / "monday", "--redis", server.url)
    (parent / "20250101T000000Z").mkdir()
    (parent / "notes").touch()
    # A damaged backup, and one of another cluster.
    damaged, other = parent / "20250102T000000Z", parent / "20260131T120000Z"
    (parent / day(1)).rename(damaged)
    (damaged / SNAPSHOT).write_bytes(b"short")
    described = json.loads((other / MANIFEST).read_text())
    (other / MANIFEST).write_text(json.dumps(described | {"cluster_id": "another"}))
    before = names(parent)
    new = json.loads(success("backup", *arguments, "--json"))
    assert new["deleted"] == []
    assert names(parent) == sorted([*before, day(2)])


def test_no_backup_is_deleted_before_the_new_one_is_verified(
    server: Server, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (parent, "--redis", server.url, "--keep", "1")
    success("backup", *arguments)
    (first,) = names(parent)
    with monkeypatch.context() as damaged:
        receive = command.back_up_server

        def damage(*given: object) -> object:
            described = receive(*given)
            snapshot = parent / f"{day(1)}.unverified" / SNAPSHOT
            snapshot.write_bytes(snapshot.read_bytes()[:-9] + bytes(9))
            return described

        damaged.setattr(command, "back_up_server", damage)
        said = failure("backup", *arguments)
    assert f"{parent / day(1)}.unverified could not be verified, and no older backup was deleted" in said
    assert names(parent) == [first, f"{day(1)}.unverified"]
    failure("backup", parent, "--redis", "redis://127.0.0.1:1", "--keep", "1")
    assert names(parent) == [first, f"{day(1)}.unverified"]
    success("backup", *arguments)
    assert names(parent) == [f"{day(1)}.unverified", day(3)]


def test_a_run_that_ends_while_it_verifies_leaves_no_verified_name(
    server: Server, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*given: object) -> None:
        raise SystemExit(143)

    arguments = (parent, "--redis", server.url, "--keep", "1")
    with monkeypatch.context() as killed:
        killed.setattr(command, "check", ended)
        assert run("backup", *arguments).exit_code == 143
    assert names(parent) == ["20260131T120000Z.unverified"]
    success("backup", *arguments)
    assert names(parent) == ["20260131T120000Z.unverified", day(1)]


def test_what_killed_runs_have_left_is_deleted(server: Server, parent: Path) -> None:
    parent.mkdir()
    for name in (
        "20250101T000000Z.partial",
        "20250102T000000Z.partial",
        "monday.partial",
        "20250103T000000Z.unverified.partial",
    ):
        (parent / name).mkdir()
        (parent / name / SNAPSHOT).touch()
    writing = os.open(parent / "20250102T000000Z.partial", os.O_RDONLY)
    try:
        fcntl.flock(writing, fcntl.LOCK_EX)
        success("backup", parent, "--redis", server.url, "--keep", "1")
    finally:
        os.close(writing)
    assert names(parent) == ["20250102T000000Z.partial", "20260131T120000Z", "monday.partial"]


def test_a_second_backup_of_one_second_is_refused_and_leaves_nothing(
    server: Server, parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "time", SimpleNamespace(time=lambda: 1_769_860_800))
    arguments = (parent, "--redis", server.url, "--keep", "1")
    success("backup", *arguments)
    assert "backups are named by the second" in failure("backup", *arguments)
    assert names(parent) == ["20260131T120000Z"]

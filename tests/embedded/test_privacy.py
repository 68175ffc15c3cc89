"""The data folder is private: its contents are checked, and other users can't open anything in it."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from korvet.embedded import folder, privacy
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.server import EmbeddedServer


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """New files are open to everyone unless their creator restricts them."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, str]:
    """Returns the modes for other users of the folder and its contents, if there are any."""
    found = {}
    for each in [path, *path.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):  # a scratch file of a rewrite that has ended
            mode = each.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o077:
                found[str(each.relative_to(path))] = oct(mode & 0o077)
    return found


def write(data_dir: Path, value: str) -> None:
    server = EmbeddedServer(data_dir)
    try:
        with redis.Redis.from_url(server.start()) as client:
            client.rpush("values", value)
            client.bgrewriteaof()
            assert modes(data_dir) == {}
    finally:
        server.stop()


def test_whatever_is_made_is_for_the_owner(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    write(data_dir, "a")
    assert modes(data_dir) == {}
    assert {"server.log", "server.conf", "server.json", "appendonlydir"} <= set(os.listdir(data_dir))


def test_a_folder_of_an_earlier_version_is_closed_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir = tmp_path / "data"
    write(data_dir, "a")
    for path in [data_dir, *data_dir.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o644)
    other = data_dir / "notes"
    other.write_text("not ours")
    assert not caplog.records
    server = EmbeddedServer(data_dir)
    with redis.Redis.from_url(server.start()) as client:
        assert client.lrange("values", 0, -1) == [b"a"]
    server.stop()
    assert set(modes(data_dir)) <= {"notes"}
    assert "so that only its owner can" in caplog.text


def test_the_folder_is_no_link(tmp_path: Path) -> None:
    real, data_dir = tmp_path / "real", tmp_path / "data"
    real.mkdir()
    data_dir.symlink_to(real)
    with pytest.raises(EmbeddedServerError, match=f"set data_dir to {real}"):
        folder.open_folder(data_dir)
    assert list(real.iterdir()) == []
    data_dir.unlink()
    data_dir.symlink_to(tmp_path / "nowhere")
    with pytest.raises(EmbeddedServerError, match="symbolic link"):
        folder.open_folder(data_dir)


@pytest.mark.parametrize(
    "name",
    [
        "korvet.lock",
        "server.lock",
        "server.log",
        "server.conf",
        "server.json",
        "appendonlydir",
        "appendonlydir/appendonly.aof.1.incr.aof",
        "dump.rdb",
    ],
)
@pytest.mark.parametrize("target", ["file", "folder", "nothing"])
def test_no_link_in_the_folder_is_followed(tmp_path: Path, name: str, target: str) -> None:
    data_dir, victim = tmp_path / "data", tmp_path / "victim"
    if target == "file":
        victim.write_text("mine")
        victim.chmod(0o644)
    elif target == "folder":
        victim.mkdir()
    link = data_dir / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(EmbeddedServerError, match=f"{name} is a symbolic link"):
        EmbeddedServer(data_dir).start()
    if target == "file":
        assert victim.read_text() == "mine"
        assert stat.S_IMODE(victim.stat().st_mode) == 0o644
    else:
        assert victim.exists() == (target == "folder")
        assert target == "nothing" or list(victim.iterdir()) == []


def test_what_belongs_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(EmbeddedServerError, match="belongs to user") as caught:
        folder.open_folder(tmp_path)
    assert "run korvet as" in str(caught.value)
    assert "chown -R" in str(caught.value)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755, "nothing is changed"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "server.conf", "appendonlydir", "server.sock"])
def test_a_file_of_another_user_is_refused(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path / "data"
    write(data_dir, "a")
    (data_dir / "server.sock").touch()
    os.chown(data_dir / name, 65534, -1)
    with pytest.raises(EmbeddedServerError, match="belongs to user"):
        EmbeddedServer(data_dir).start()


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "server.log")
    with pytest.raises(EmbeddedServerError, match="neither a file nor a folder"):
        folder.open_folder(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(EmbeddedServerError, match="is not a folder"):
        folder.open_folder(tmp_path / "data")


def test_a_file_system_without_modes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    with pytest.raises(EmbeddedServerError, match="its file system keeps no modes"):
        folder.open_folder(tmp_path)


def test_files_that_appear_later_are_not_followed_either(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "server.log").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        privacy.append_private(tmp_path / "server.log")
    with pytest.raises(OSError, match="symbolic links"):
        privacy.write_private(tmp_path / "server.log", b"")
    assert victim.read_text() == "mine"

"""The embedded server with korvet's server module: when it loads the module, and folders that need it."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from korvet.embedded import append_only
from korvet.embedded.binary import find_server, identify, installed_servers
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.server import EmbeddedServer
from korvet.redis.module import VERSION, find_module
from tests.embedded.folders import (
    DEADLINE_S,
    RECORDS,
    add,
    add_plainly,
    begin,
    broken_module,
    dumps,
    fill,
    filled,
    is_plain,
    last_part,
    put_command,
    repair,
    running,
)
from tests.support.polling import until

pytestmark = pytest.mark.usefixtures("module")


def test_the_server_has_the_module_and_replays_what_it_added(tmp_path: Path) -> None:
    with running(tmp_path) as (server, client):
        assert server.loaded_module == find_module()
        fill(client)
        before = dumps(client)
        assert before[b"orders"] == before[b"plain"]
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: server.exit_status() is not None, DEADLINE_S, "the kill is seen")
        server.launch()
        server.wait_ready()
        assert dumps(client) == before
        add(client, "orders", 500)
        assert client.xrevrange("orders", count=1)[0][0] == b"500-%d" % (RECORDS - 1)


def test_the_module_can_be_turned_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, module="off") as (server, client):
        assert server.loaded_module is None
        with pytest.raises(redis.ResponseError, match="unknown command"):
            client.execute_command("KORVET.PUT")
    assert not caplog.records


def test_a_module_in_a_folder_with_an_unusual_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = find_module()
    assert built is not None
    path = tmp_path / 'quo"te\\d  name' / built.name
    path.parent.mkdir()
    path.write_bytes(built.read_bytes())
    path.chmod(0o755)
    monkeypatch.setattr("korvet.embedded.server.find_module", lambda: path)
    for _ in range(2):
        with running(tmp_path / "data") as (server, client):
            assert server.loaded_module == path
            assert client.execute_command("KORVET.PUT") == VERSION


def test_a_program_that_refuses_the_module_runs_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("korvet.embedded.server.find_module", lambda: broken_module(tmp_path))
    with running(tmp_path / "data") as (server, client):
        assert server.loaded_module is None
        client.set("a", "1")
    (record,) = caplog.records
    assert "runs without korvet's server module" in record.message
    assert "failed to load" in record.message
    assert is_plain(tmp_path / "data")


def test_a_module_that_is_not_built_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("korvet.embedded.server.find_module", lambda: None)
    with running(tmp_path) as (server, _):
        assert server.loaded_module is None
    (record,) = caplog.records
    assert "which is not built" in record.message


def off(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    return {"module": "off"}


def unbuilt(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    monkeypatch.setattr("korvet.embedded.server.find_module", lambda: None)
    return {}


def refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    monkeypatch.setattr("korvet.embedded.server.find_module", lambda: broken_module(folder))
    return {}


@pytest.mark.parametrize("lack", [off, unbuilt, refused])
def test_a_folder_that_needs_the_module_is_refused_without(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lack: Callable[[pytest.MonkeyPatch, Path], dict[str, Any]],
) -> None:
    data_dir = tmp_path / "data"
    before = filled(data_dir)
    with monkeypatch.context() as patches:
        options = lack(patches, tmp_path)
        with pytest.raises(EmbeddedServerError, match=r"holds KORVET\.ADD") as refusal:
            EmbeddedServer(data_dir, **options).start()
        assert f"`korvet rewrite --data-dir {data_dir}`" in str(refusal.value)
    with running(data_dir) as (_, client):
        assert dumps(client) == before


def test_a_folder_of_the_last_release(tmp_path: Path) -> None:
    """It notes the module; its file has the version of a set of replicas in each command."""
    before = filled(tmp_path)
    noted = json.loads((tmp_path / "server.json").read_text())
    (tmp_path / "server.json").write_text(json.dumps(noted | {"module": 1}))
    part = last_part(tmp_path)
    part.write_bytes(part.read_bytes().replace(b"\r\n$1\r\n0\r\n$1\r\n0\r\n", b"\r\n$1\r\n0\r\n$2\r\n77\r\n"))
    assert part.read_bytes().count(b"$2\r\n77\r\n") == 40
    with running(tmp_path) as (_, client):
        assert dumps(client) == before


@pytest.mark.parametrize("transaction", [False, True])
def test_an_append_that_is_cut_off_is_left_out(tmp_path: Path, *, transaction: bool) -> None:
    with running(tmp_path) as (_, client):
        begin(client, "s")
        add(client, "s", 1)
        before = dumps(client)
        cut_off = last_part(tmp_path).stat().st_size
        with client.pipeline(transaction=transaction) as pipeline:
            pipeline.hset("meta", "end", 2)
            pipeline.execute_command(*put_command("s", 2))
            pipeline.execute()
        if not transaction:
            before = {**before, b"meta": client.dump("meta")}
    path = last_part(tmp_path)
    assert path.stat().st_size > cut_off + 100
    os.truncate(path, path.stat().st_size - 60)
    checked = repair(tmp_path, "--yes")
    assert checked.exit_code == 0, checked.output
    with running(tmp_path) as (_, client):
        assert dumps(client) == before
        add(client, "s", 2)
        assert client.xlen("s") == 1 + 2 * RECORDS


def test_the_server_itself_leaves_out_an_append_that_is_cut_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path) as (_, client):
        begin(client, "s")
        add(client, "s", 1)
        before = dumps(client)
        add(client, "s", 2)
    path = last_part(tmp_path)
    os.truncate(path, path.stat().st_size - 60)
    with running(tmp_path) as (_, client):
        assert dumps(client) == before
    assert "were cut off" in caplog.text


def test_damage_before_an_append_is_repaired(tmp_path: Path) -> None:
    with running(tmp_path) as (_, client):
        begin(client, "s")
        add(client, "s", 1)
        before = dumps(client)
        add(client, "s", 2)
        add(client, "s", 3)
    path = last_part(tmp_path)
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"*6\r\n$10\r\nKORVET.ADD", damaged.index(b"KORVET.ADD"))
    damaged[at : at + 4] = b"\0" * 4
    path.write_bytes(damaged)
    with pytest.raises(EmbeddedServerError, match="`korvet repair --data-dir"):
        EmbeddedServer(tmp_path).start()
    mended = repair(tmp_path, "--yes")
    assert mended.exit_code == 0, mended.output
    with running(tmp_path) as (_, client):
        assert dumps(client) == before


def test_a_killed_rewrite_leaves_no_file(tmp_path: Path) -> None:
    for name in ("temp-rewriteaof-123.aof", "temp-rewriteaof-bg-123.aof"):
        (tmp_path / name).write_bytes(b"unfinished")
    with running(tmp_path):
        assert append_only.unfinished(tmp_path) == []


def test_replay_after_kills_under_load(tmp_path: Path) -> None:
    """kill -9 of the server while it appends: what was acknowledged is there, as XADD would have added it."""
    last = 0
    with running(tmp_path) as (server, client):
        begin(client, "s")
        for _ in range(5):
            load = Load(server.url, last + 1)
            until(lambda load=load: load.acknowledged > load.first + 50, DEADLINE_S, "the load runs")
            os.kill(server.pid, signal.SIGKILL)
            load.join()
            until(lambda: server.exit_status() is not None, DEADLINE_S, "the kill is seen")
            server.launch()
            server.wait_ready()
            (newest,) = client.xrevrange("s", count=1)
            milliseconds, sequence = map(int, newest[0].split(b"-"))
            assert milliseconds >= load.acknowledged
            assert sequence == RECORDS - 1
            last = milliseconds
        begin(client, "expected")
        for first in range(1, last + 1):
            add_plainly(client, "expected", first)
        assert client.dump("s") == client.dump("expected")


class Load:
    """Appends batches until the server is gone. `acknowledged` is the newest one that the server answered."""

    def __init__(self, url: str, first: int) -> None:
        self.first = first
        self.acknowledged = first - 1
        self._client = redis.Redis.from_url(url, retry=None)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                with self._client.pipeline(transaction=False) as pipeline:
                    numbers = range(self.acknowledged + 1, self.acknowledged + 11)
                    for number in numbers:
                        pipeline.execute_command(*put_command("s", number))
                    pipeline.execute()
                self.acknowledged = numbers[-1]
        except redis.ConnectionError:
            return

    def join(self) -> None:
        self._thread.join()
        self._client.close()


def test_the_program_on_path_loads_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default installation of Redis or Valkey, whose allocator is its own."""
    others = [server for server in installed_servers() if server.path != find_server().path]
    if not others:
        pytest.skip("only one server is installed")
    with running(tmp_path, binary=identify(others[0].path)) as (server, client):
        fill(client)
        before = dumps(client)
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: server.exit_status() is not None, DEADLINE_S, "the kill is seen")
        server.launch()
        server.wait_ready()
        assert dumps(client) == before

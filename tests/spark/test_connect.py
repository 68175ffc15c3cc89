"""The commands on a Spark Connect server, which gets korvet from the client."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner

from korvet.spark import cli
from korvet.spark.session import connect
from korvet.spark.session.connect import ConnectError, connect_session
from korvet.spark.versions import running
from tests.spark.sharing import begin
from tests.support.ports import free_port
from tests.support.processes import run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.keyspace import Keyspace

MS = 1_700_000_000_000
TOPIC_ID = UUID(int=7)
COMMAND_TIMEOUT_S = 240


def korvet(url: str, *words: str) -> str:
    """The output of a command on the server."""
    environ = {**os.environ, "SPARK_REMOTE": url}
    done = run([sys.executable, "-m", "korvet", *words], COMMAND_TIMEOUT_S, env=environ)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()[-4000:]
    return done.stdout.decode()


def committed(folder: Path) -> int:
    """The committed offset in a table of one row, exported as JSON."""
    (file,) = folder.glob("*.json")
    return int(json.loads(file.read_text())["committed_offset"])


@pytest.mark.long
@pytest.mark.spark
def test_exports(connect_url: str, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t", 2)
    keyspace.offsets_topic()
    for number in range(20):
        keyspace.add("t", number % 2, f"{MS}-{number}", b"value", b"%d" % number)
    keyspace.commit("g", "t", 0, MS << 10, at_ms=MS + 5)
    redis = ["--redis", keyspace.url]
    follow = ["export", "t", *redis, "--to", str(tmp_path / "out"), "--available-now"]
    assert korvet(connect_url, *follow).startswith("t: in parquet")
    keyspace.add("t", 0, f"{int(time.time()) * 1000}-0", b"value", b"20")
    korvet(connect_url, *follow)
    found = ds.dataset(sorted((tmp_path / "out").glob("part-*.parquet"))).to_table(["value"])
    assert sorted(int(value.as_py()) for value in found["value"]) == list(range(21))
    table = ["export", "--table", "current_offsets", *redis, "--format", "json"]
    korvet(connect_url, *table, "--to", str(tmp_path / "current"))
    assert committed(tmp_path / "current") == MS << 10


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("delta")
def test_all_tables_and_report(connect_url: str, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t", topic_id=str(TOPIC_ID))
    keyspace.offsets_topic()
    keyspace.commit("g", "t", 0, MS << 10, at_ms=MS + 5)
    keyspace.add("t", 0, f"{int(time.time()) * 1000}-0", b"value", b"v")
    begin(keyspace, "workers", TOPIC_ID.bytes, "t", 0)
    redis = ["--redis", keyspace.url]
    tables = str(tmp_path / "tables")
    korvet(connect_url, "export", "--all-tables", *redis, "--to", tables)
    kept = ["export", "--table", "current_offsets", "--from", tables, "--format", "json"]
    korvet(connect_url, *kept, "--to", str(tmp_path / "current"))
    assert committed(tmp_path / "current") == MS << 10
    said = korvet(connect_url, "report", *redis, "--out", str(tmp_path / "report"))
    assert said.startswith("2 groups, 1 needs attention. Report: ")
    assert (tmp_path / "report" / "report.html").stat().st_size > 1000


def test_a_server_that_is_away(tmp_path: Path, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc_status")
    keyspace.topic("t")
    where = f"127.0.0.1:{free_port()}"
    words = ["t", "--redis", keyspace.url, "--to", str(tmp_path / "out"), "--remote", f"sc://{where}"]
    result = CliRunner().invoke(cli.export, words)
    assert result.exit_code == 1
    assert result.output.endswith(f"Error: no Spark Connect server at {where}: Connection refused\n")
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConnectError, match=f"no Spark Connect server at {address}: .* not answer gRPC"):
            connect_session("tests", f"sc://{address}")
    with pytest.raises(ConnectError, match="sc://h:port is not the URL of a Spark Connect server"):
        connect_session("tests", "sc://h:port")


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_PACKAGES", ("sys", "no_such_package", "no_such.inner"))
    with pytest.raises(ConnectError, match=r"missing here \(no_such.*pip install 'korvet\[connect\]'"):
        connect_session("tests", "sc://h:1")


@pytest.mark.spark
def test_a_server_that_cannot_be_used(connect_url: str, keyspace: Keyspace, tmp_path: Path) -> None:
    """In a process of its own: this one may have a session with a driver."""
    program = """
import sys, pyspark
from korvet.spark.session import connect, registration
from korvet.spark.session.connect import connect_session
pyspark.__version__, version = "4.9.1", pyspark.__version__
def said():
    try:
        connect_session("tests", sys.argv[1])
    except connect.ConnectError as error:
        print(error)
said()
pyspark.__version__ = version
class Source(registration.KorvetDataSource):
    def schema(self):
        import no_such_module
registration.KorvetDataSource = Source
said()
"""
    done = run([sys.executable, "-c", program, connect_url], COMMAND_TIMEOUT_S)
    where = connect_url.removeprefix("sc://")
    version, *loading = done.stdout.decode().splitlines()
    assert version.startswith(f"the Spark Connect server at {where} runs Spark 4.")
    assert ", and this client is PySpark 4.9.1: install pyspark==4." in version
    if running() == (4, 0):
        # The server has found the format by itself, and keeps that one.
        assert loading == []
        return
    assert loading[0].startswith(
        f"the Spark Connect server at {where} can't load korvet: "
        "ModuleNotFoundError: No module named 'no_such_module'; its Python must"
    )

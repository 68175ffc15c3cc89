"""Every block of README, and every program of docs/guides/clients.md, runs as written, except the address."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from korvet.offsets.packing import entry_id
from tests.support import go
from tests.support.confluent import producer, read_all, send
from tests.support.polling import patient, until
from tests.support.ports import accepts, free_port
from tests.support.processes import Child, run
from tests.support.records import Record
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.java import JavaTools
    from tests.support.node import NodeTools

pytestmark = pytest.mark.clients

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CLIENTS = (ROOT / "docs" / "guides" / "clients.md").read_text()
FENCED = re.findall(
    r"^```(\w+)\n(.*?)^```",
    README.replace("```python", "```pytest") + CLIENTS.replace("```sh", "```kcat"),
    re.DOTALL | re.MULTILINE,
)
_WITHOUT_FENCED = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
INDENTED = re.findall(r"(?<=\n\n)(?:    .*\n)+", _WITHOUT_FENCED)
ADDRESS = "localhost:9092"
# The tests that run the blocks, by language or by the beginning of an indented block.
RUN_BY = {
    "sh": "test_the_commands",
    "pytest": "test_the_file_of_pytest",
    "python": "test_python_then_redis",
    "properties": "test_java",
    "js": "test_node",
    "go": "test_go",
    "kcat": "test_kcat",
    "XRANGE": "test_python_then_redis",
    "offset = ": "test_the_offset_is_that_of_its_entry",
    "./dev test [SUITE": "test_the_words_of_dev",
    "docker compose": "tests/deploy",
    "Kafka clients ───": "a drawing",
}
DEADLINE_S = 60.0


def fenced(language: str) -> str:
    (found,) = [text for name, text in FENCED if name == language]
    return str(found)


def indented(beginning: str) -> list[str]:
    """Returns the lines of the indented block with this beginning."""
    (found,) = [text for text in INDENTED if text.lstrip().startswith(beginning)]
    return [line.strip() for line in found.splitlines()]


@pytest.fixture
def server() -> Iterator[KorvetServer]:
    with KorvetServer() as made:
        yield made


def at(server: KorvetServer, text: str) -> str:
    assert ADDRESS in text
    return text.replace(ADDRESS, server.bootstrap)


def test_no_block_is_left_out() -> None:
    assert len(FENCED) + len(INDENTED) >= len(RUN_BY)
    for begins in [*(name for name, _ in FENCED), *(text.lstrip() for text in INDENTED)]:
        assert [name for name in RUN_BY if begins.startswith(name)], f"nothing runs {begins!r}"
    for name in RUN_BY.values():
        assert not name.startswith("test_") or name in globals()


def test_the_commands(tmp_path: Path) -> None:
    lines = [line for name, text in FENCED if name == "sh" for line in text.splitlines() if line]
    # What builds and installs, demo and tests have tests of their own.
    assert [lines[0], *lines[-2:]] == ["pip install .", "./dev demo", "./dev test"]
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("KORVET_")}
    env |= {"KORVET_LISTEN": f"127.0.0.1:{port}", "KORVET_DATA_DIR": str(tmp_path / "data")}

    def command(line: str) -> list[str]:
        assert line.startswith("korvet ")
        return [sys.executable, "-m", *line.replace(ADDRESS, f"127.0.0.1:{port}").split()]

    broker = Child(command(lines[1]), tmp_path / "log", env)
    try:
        until(lambda: accepts("127.0.0.1", port), DEADLINE_S, "the broker serves")
        for line in lines[2:-2]:
            done = run(command(line), timeout_s=DEADLINE_S, env=env)
            assert done.returncode == 0, (line, done.stdout.decode() + done.stderr.decode())
    finally:
        broker.terminate()


def test_the_file_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(fenced("pytest"))
    # In a folder without the settings of this repository. Processes of tests find no hypothesis
    # (tests/support/bare), and its plugin fails without it.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, check=False, timeout=patient(DEADLINE_S)
    )
    assert (done.returncode, b"1 passed" in done.stdout) == (0, True), (done.stdout + done.stderr).decode()


def test_the_words_of_dev() -> None:
    shown = run([str(ROOT / "dev"), "help"], timeout_s=20)
    assert shown.returncode == 0
    words = {line.split()[1] for line in indented("./dev test [SUITE")}
    assert [word for word in words | {"demo"} if f"\n  {word} " not in shown.stdout.decode()] == []


def test_the_offset_is_that_of_its_entry() -> None:
    (found,) = re.findall(r"(\d+)  =  (\d+-\d+)", "\n".join(indented("offset = ")))
    assert entry_id(int(found[0])) == found[1]


def test_python_then_redis(server: KorvetServer) -> None:
    """The Python program, then the commands of Redis clients on the same data."""
    done = run([sys.executable, "-c", at(server, fenced("python"))], timeout_s=DEADLINE_S)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"b'k1' b'hello' ")
    entry = entry_id(int(done.stdout.split()[-1]))

    def call(line: str) -> Any:
        return server.raw(*re.split(r" {2,}", line)[0].split())

    shown, added, json_added, read, acknowledged = map(call, indented("XRANGE"))
    assert shown[0][0].decode() == entry
    assert shown[0][1][:4] == [b"key", b"k1", b"value", b"hello"]
    ((_, entries),) = read.items() if isinstance(read, dict) else read
    assert [found for found, _ in entries] == [added, json_added], (
        "it goes on where the Kafka group committed"
    )
    assert acknowledged == 0, "nobody has read that entry"
    values = [read.record.value for read in read_all(server.bootstrap, "orders")]
    assert values == [b"hello", b"hello", b'{"celsius":"21.5","sensor":"s-7"}']


def test_node(server: KorvetServer, node: NodeTools, tmp_path: Path) -> None:
    script = tmp_path / "readme.js"
    script.write_text(at(server, fenced("js")))
    # kafkajs also logs lines.
    assert re.search(r"^k2 hello from Node \d+$", node.run_file(script), re.MULTILINE)
    assert [read.record.value for read in read_all(server.bootstrap, "orders")] == [b"hello from Node"]


@pytest.mark.long
def test_go(server: KorvetServer, tmp_path: Path) -> None:
    written = go.run_source(at(server, fenced("go")), tmp_path)
    assert re.fullmatch(r"k3 hello from Go \d+\n", written)
    assert [read.record.value for read in read_all(server.bootstrap, "orders")] == [b"hello from Go"]


def test_java(server: KorvetServer, java: JavaTools, tmp_path: Path) -> None:
    properties = tmp_path / "readme.properties"
    properties.write_text(at(server, fenced("properties")))
    send(producer(server.bootstrap), "orders", 0, [Record(b"k4", b"hello from Java", (), 1)])
    where = ("--bootstrap-server", server.bootstrap)
    reading = ("--topic", "orders", "--max-messages", "1", "--command-config", str(properties))
    assert java.run("console-consumer", *where, *reading) == "hello from Java\n"
    listed = java.run("consumer-groups", *where, "--list", "--type", "consumer", "--state")
    assert [line for line in listed.splitlines() if line.startswith("readers ")]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat on PATH")
def test_kcat(server: KorvetServer) -> None:
    produce, consume = at(server, fenced("kcat")).splitlines()
    outputs = [
        subprocess.run(
            ["sh", "-c", line], capture_output=True, check=True, timeout=patient(DEADLINE_S)
        ).stdout
        for line in (produce, consume)
    ]
    assert b"hello" in outputs[1].splitlines()

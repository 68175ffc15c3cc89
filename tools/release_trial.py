"""Uses an installed korvet as a newcomer does: the environment has the base installation and nothing else.

    python -I tools/release_trial.py CLIENT compiled|interpreted

CLIENT is a folder with kafka-python and pytest. Runs in the environment that is tried, so it imports only the
standard library and these. Prints what it has seen; any failure is an exception.
"""

from __future__ import annotations

import fcntl
import json
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_KORVET = Path(sys.executable).with_name("korvet")
_READY_S = 120
_RECORD_MS = 60_000
# Commands of the extra `spark`.
_SPARK_COMMANDS = {"report", "export", "tables", "jars"}
_TEST = """\
from kafka import KafkaProducer

def test_an_order_is_sent(korvet_broker, korvet_topic):
    KafkaProducer(bootstrap_servers=korvet_broker.bootstrap_servers).send(korvet_topic, b"hello").get(60)
    assert [record.value for record in korvet_broker.records(korvet_topic)] == [b"hello"]
"""
_RUN_TESTS = "import sys; sys.path.append(sys.argv[1]); import pytest; sys.exit(pytest.main(sys.argv[2:]))"
# ioctl numbers and flags of netdevice(7).
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def main(client: str, expected: str) -> None:
    """Run the trial."""
    networks = [name for _, name in socket.if_nameindex()]
    if networks == ["lo"]:
        _raise_loopback()
    facts = json.loads(_korvet("version", "--json"))
    assert facts["accelerated"] == (expected == "compiled"), facts
    assert (facts["module"] is not None) == (expected == "compiled"), facts
    commands = set(re.findall(r"^  ([a-z]+) ", _korvet("--help").partition("Commands:")[2], re.MULTILINE))
    assert commands > {"serve", "topics", "groups", *_SPARK_COMMANDS}, commands
    for command in commands - _SPARK_COMMANDS:
        assert "Usage: korvet" in _korvet(command, "--help")
    for command in _SPARK_COMMANDS:
        done = subprocess.run([_KORVET, command], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "pip install 'korvet[spark]'" in done.stderr, done.stderr
    with tempfile.TemporaryDirectory() as folder:
        _korvet("monitoring", folder)
        assert list(Path(folder).glob("grafana/dashboards/*.json"))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _serve(client, Path(folder))
    took_s = time.monotonic() - began
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _run_test(client, Path(folder))
    tested_s = time.monotonic() - began
    print(  # noqa: T201
        f"korvet {facts['korvet']} on Python {facts['python']}, {expected}, {', '.join(facts['servers'])}: "
        f"a broker kept a record and stopped, {took_s:.1f} s; a test of five lines passed, {tested_s:.1f} s; "
        f"networks: {', '.join(networks)}"
    )


def _serve(client: str, folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = folder / "log"
    with log.open("w") as output:
        command: list[str | Path] = [_KORVET, "serve", "--listen", address, "--data-dir", folder / "data"]
        broker = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _korvet("ready", "--listen", address, "--wait", str(_READY_S))
        _exchange(client, address)
        listed = json.loads(_korvet("groups", "list", "--bootstrap-server", address, "--json"))
        assert [group["group"] for group in listed] == ["trial"], listed
        broker.terminate()
        status = broker.wait(_READY_S)
        assert status == 0, status
    except BaseException:
        sys.stderr.write(log.read_text())
        raise
    finally:
        broker.kill()
        broker.wait()


def _exchange(client: str, address: str) -> None:
    """Produce a record, and consume it in a group."""
    sys.path.append(client)
    import kafka  # noqa: PLC0415  # from the folder that is named

    producer: Any = kafka.KafkaProducer(bootstrap_servers=address)
    producer.send("trial", b"kept").get(_RECORD_MS / 1000)
    producer.close()
    consumer: Any = kafka.KafkaConsumer(
        "trial",
        bootstrap_servers=address,
        group_id="trial",
        auto_offset_reset="earliest",
        consumer_timeout_ms=_RECORD_MS,
    )
    record = next(iter(consumer))
    assert record.value == b"kept", record
    consumer.commit()
    consumer.close()


def _run_test(client: str, folder: Path) -> None:
    """Run a test with the fixtures of the pytest plugin."""
    (folder / "test_orders.py").write_text(_TEST)
    command = [
        sys.executable,
        "-I",
        "-c",
        _RUN_TESTS,
        client,
        "-q",
        "-p",
        "no:cacheprovider",
        "test_orders.py",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout, done.stdout


def _korvet(*arguments: str) -> str:
    done = subprocess.run([_KORVET, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"korvet {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def _raise_loopback() -> None:
    """Switch on the loopback of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        fcntl.ioctl(opened, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How fast a broker for tests is: starts, stops, topics, and the first record of a new group.

    ./dev bench starting [--rounds 20] [--beside CHECKOUT]

With `--beside`, the environment of another checkout (`CHECKOUT/.venv`) is measured in the same rounds, for
example that of the release before. What that cannot do has no figure. Compare ratios: the same machine can be
half as fast a minute later.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
_WAIT_S: Final = 60
_TOPICS: Final = 100
_READY: Final = re.compile(rb"korvet is ready on (\S+) ")
# Prints the seconds from the import of korvet.testing to a first topic, of the next brokers, and of the end.
_FIXTURES: Final = """
import time
began = time.perf_counter()
from korvet.testing import KorvetBroker
with KorvetBroker() as broker:
    broker.create_topic("first")
    print(time.perf_counter() - began)
began = time.perf_counter()
with KorvetBroker() as broker:
    print(time.perf_counter() - began)
    began = time.perf_counter()
print(time.perf_counter() - began)
"""


class Side:
    """A checkout with its environment."""

    def __init__(self, name: str, checkout: Path) -> None:
        self.name = name
        self.checkout = checkout
        self.python = str(checkout / ".venv" / "bin" / "python")
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        # Tests run with compiled modules, after the first time.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("KORVET_")}
        self.environ = {**kept, "PYTHONPATH": str(ROOT / "tests" / "support" / "bare")}
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self.is_ephemeral = "--ephemeral" in self._output("-m", "korvet", "serve", "--help")

    def _output(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.python, *arguments],
            env=self.environ,
            cwd=self.checkout,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def measure(self) -> None:
        """Take one figure of each kind."""
        with tempfile.TemporaryDirectory() as folder:
            with self._served("serve, new folder", "--listen", "127.0.0.1:0", "--data-dir", folder):
                pass
            options = ("--listen", "127.0.0.1:0", "--data-dir", folder)
            with self._served("serve", *options, "--set", "group.initial.rebalance.delay.ms=0") as address:
                if not self.is_ephemeral:
                    self._use(address)
        if self.is_ephemeral:
            with self._served("serve --ephemeral", "--ephemeral") as address:
                self._use(address)
            for name, text in zip(
                ("import and KorvetBroker", "KorvetBroker again", "KorvetBroker: end"),
                self._output("-c", _FIXTURES).split(),
                strict=True,
            ):
                self.seconds[name].append(float(text))

    @contextmanager
    def _served(self, name: str, *options: str) -> Iterator[str]:
        """A broker; its address. Notes how long its start and its stop take."""
        began_s = time.perf_counter()
        process = subprocess.Popen(
            [self.python, "-m", "korvet", "serve", *options],
            env=self.environ,
            cwd=self.checkout,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        with process, process.stdout:
            line = process.stdout.readline()
            found = _READY.match(line)
            address = found[1].decode() if found else str(json.loads(line)["bootstrap_servers"])
            AdminClient({"bootstrap.servers": address}).list_topics(timeout=_WAIT_S)
            self.seconds[f"{name}: to the first Metadata"].append(time.perf_counter() - began_s)
            yield address
            began_s = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            process.wait(_WAIT_S)
            self.seconds[f"{name}: stop"].append(time.perf_counter() - began_s)

    def _use(self, address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        began_s = time.perf_counter()
        for number in range(_TOPICS):
            for created in admin.create_topics([NewTopic(f"topic-{number}", 1)]).values():
                created.result(_WAIT_S)
        self.seconds[f"{_TOPICS} topics, one by one"].append(time.perf_counter() - began_s)
        producer = Producer({"bootstrap.servers": address})
        producer.produce("topic-0", b"first")
        assert producer.flush(_WAIT_S) == 0
        began_s = time.perf_counter()
        config = {"bootstrap.servers": address, "group.id": "new", "auto.offset.reset": "earliest"}
        consumer = Consumer(config)
        consumer.subscribe(["topic-0"])
        message = consumer.poll(_WAIT_S)
        assert message is not None
        assert message.error() is None
        self.seconds["first record of a new group"].append(time.perf_counter() - began_s)
        consumer.close()


@click.command()
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--beside", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout."
)
def main(rounds: int, beside: Path | None) -> None:
    """Print the median seconds of each figure."""
    sides = [Side("this", ROOT)]
    if beside is not None:
        sides.append(Side(beside.name, beside.absolute()))
    for _ in range(rounds):
        for side in sides:
            side.measure()
    table = Table(*["median of seconds", *(side.name for side in sides)])
    for name in dict.fromkeys(name for side in sides for name in side.seconds):
        figures = [side.seconds.get(name) for side in sides]
        table.add_row(name, *(f"{statistics.median(each):.3f}" if each else "" for each in figures))
    Console().print(table)


if __name__ == "__main__":
    main()

"""`korvet serve --ephemeral`: a broker for tests. Its data and its processes end with the process that
started it.

It watches its parent by `getppid`, which holds for whatever starts it: the kernel gives a process whose
parent ended another one at once, even after kill -9. A signal at the parent's end (PR_SET_PDEATHSIG) exists
on Linux only, and comes when the starting *thread* ends, as threads of Java and Go do. The end of a pipe is
not seen while another child of the parent has inherited it, and a shell passes no pipe.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import urlsplit

import click

from korvet.config.address import Address, redacted
from korvet.config.errors import ConfigError
from korvet.config.settings import Config
from korvet.embedded.ephemeral import HOST, EphemeralServer, answers, log_tail
from korvet.embedded.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.broker import Ready

DEFAULTS: Final[Mapping[str, str]] = {
    "listen": f"{HOST}:0",
    "admin.listen": f"{HOST}:0",
    # Tests expect Kafka's offsets.
    "log.offset.assignment": "dense",
    # Tests wait for rebalances. Members of consumer groups and share groups learn of one by a heartbeat.
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.heartbeat.interval.ms": "500",
}
"""The settings that differ from those of other brokers."""

_POLL_S: Final = 0.1


def end_with(parent: int | None) -> None:
    """Let this process end when its parent ends. Returns at once.

    `parent`: the process ID of the parent, for which it may have ended already; None for the parent now. A
    thread watches, which sees the end although the event loop is busy or the broker starts.
    """
    watched = os.getppid() if parent is None else parent
    if os.getppid() != watched:
        raise click.ClickException(f"the process {watched} is not the parent of this one, or has ended")

    def watch() -> NoReturn:
        while os.getppid() == watched:
            time.sleep(_POLL_S)
        # Nobody is left that could read an answer, and the data are in memory only.
        os._exit(1)

    threading.Thread(target=watch, name="watch of the parent", daemon=True).start()


def check(config: Config, join: str | None) -> None:
    """Refuse settings that contradict `--ephemeral`. Raises ConfigError."""
    if config.redis is not None:
        raise ConfigError(
            "--ephemeral keeps its data in memory, but a Redis is configured (--redis, KORVET_REDIS or the "
            "file): leave one of them out. To share the data of another ephemeral broker, use --join."
        )
    if config.data_dir != Config().data_dir:
        raise ConfigError("--ephemeral keeps its data in memory, but data_dir is set: leave one of them out")
    if config.processes != 1:
        raise ConfigError(
            "--ephemeral runs one broker: start others with --join, the `redis` of the first one, and a "
            "--node-id of their own"
        )
    if join is not None and not _is_ephemeral_server(join):
        raise ConfigError(f"--join: expected the `redis` of an ephemeral broker, redis://...@{HOST}:PORT")


def _is_ephemeral_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "redis" and parts.hostname == HOST and bool(parts.port)
    except ValueError:  # no port, no address
        return False


def start_server(config: Config, meanwhile: Callable[[], None]) -> EphemeralServer:
    """Start the server that holds the data, and call `meanwhile`. Raises EmbeddedServerError."""
    server = EphemeralServer(config.embedded_module, config.embedded_maxmemory)
    server.start(meanwhile)
    return server


def wait_for_server(url: str) -> None:
    """Wait until the server of another broker answers: it may be starting, too. Raises
    EmbeddedServerError.
    """
    parts = urlsplit(url)
    if not answers(Address(HOST, parts.port or 0), parts.password or ""):
        raise EmbeddedServerError(f"no server answers at {redacted(url)}")


async def watch(server: EphemeralServer) -> NoReturn:
    """Raise EmbeddedServerError when the server has ended: with it the data are gone."""
    while True:
        end = server.described_end()
        if end is not None:
            raise EmbeddedServerError(f"the server that held the data {end}{log_tail(server.log)}")
        await asyncio.sleep(_POLL_S)


def tell(text: str) -> None:
    """Write a line to standard output. Raises OSError, and what is written there later goes nowhere."""
    try:
        click.echo(text)
    except OSError:
        # Python writes the line again when it ends, and a second error would make its exit status 120.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise


def announce(redis_url: str) -> Ready:
    """Returns what tells the starting process in one JSON line that clients are accepted."""

    def ready(address: object, admin: str) -> None:
        line = {
            "bootstrap_servers": str(address),
            "redis": redis_url,
            "admin": admin,
            "pid": os.getpid(),
        }
        if sys.stdout is None:
            raise click.ClickException("standard output is closed")
        try:
            tell(json.dumps(line))
        except OSError as error:
            raise click.ClickException(f"standard output takes no text: {error.strerror}") from error

    return ready

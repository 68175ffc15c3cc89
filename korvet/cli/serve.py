"""`korvet serve`: runs a broker process, and an embedded server if no Redis is configured."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import errno
import gc
import importlib
import logging
import os
import platform
import resource
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvloop

from korvet import logs, unread
from korvet.cli import ephemeral
from korvet.cli.profile import profiled
from korvet.config.address import Address, redacted
from korvet.config.errors import ConfigError
from korvet.config.loading import load
from korvet.config.machine_memory import machine_memory_bytes
from korvet.config.memory_plan import needed_bytes
from korvet.embedded.disk_space import DiskSpace
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.probe import ProbeError
from korvet.embedded.room import Room
from korvet.embedded.server import EmbeddedServer
from korvet.probe import here
from korvet.redis.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any, TypeAlias

    from korvet.broker import Ready
    from korvet.config.settings import Config

    # What runs at the same time, by name.
    _Work: TypeAlias = dict[str, Callable[[], Coroutine[Any, Any, object]]]

logger = logging.getLogger(__name__)

# Limits the restarts of the embedded server within the window below. If it keeps exiting, its log explains
# the fault.
_MOST_RESTARTS = 5
_RESTART_WINDOW_S = 60.0
# Interval of the checks of the server and of free space. The disk reserve has room for the writes of one
# interval.
_SERVER_POLL_S = 0.1
_ROOM_POLL_S = 1.0
# Pauses between attempts to start the server on a full disk.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
# Operating system errors that the user can correct. Any other is a bug and shows its traceback.
_ADDRESS_ERRORS = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}
# A signal that follows the first one within this time is one of the same stop.
_SECOND_SIGNAL_S = 1.0
# Loading progress is logged only after this time.
_PROGRESS_AFTER_S = 1.0

# glibc returns large buffers to the kernel at once and faults them in again for the next batch. These
# settings keep them: produce and fetch of 1 KB records cost a third less CPU. The first is the largest value
# that glibc accepts.
_MALLOC_SETTINGS = ((-3, 32 * 1024 * 1024), (-1, 128 * 1024 * 1024))  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


@click.command(short_help="Run a broker.")
@click.option("--listen", metavar="HOST:PORT", help="Address to accept Kafka clients on [127.0.0.1:9092].")
@click.option("--advertise", metavar="HOST:PORT", help="Address that clients connect to [as --listen].")
@click.option("--data-dir", metavar="DIR", help="Folder of the embedded server's data [./korvet-data].")
@click.option("--redis", metavar="URL", help="Use this Redis or Valkey instead of an embedded server.")
@click.option(
    "--node-id", "--broker-id", "node_id", metavar="ID", help="This broker's ID in the cluster [1]."
)
@click.option("--processes", metavar="N", help="Number of brokers; ports and node IDs count up [1].")
@click.option(
    "--dense",
    "log_offset_assignment",
    flag_value="dense",
    help="New topics have the offsets 0, 1, 2, ..., for Kafka's tools. Existing topics keep theirs.",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error [info].")
@click.option(
    "-s", "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Any other setting. Repeatable."
)
@click.option(
    "-c",
    "--config",
    "file",
    envvar="KORVET_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file of settings (also KORVET_CONFIG).",
)
@click.option(
    "--profile",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Sample the CPU time, and write folded stacks to FILE at the end.",
)
@click.option(
    "--ephemeral",
    "is_ephemeral",
    is_flag=True,
    help="For tests: data in memory, a free port, one JSON line on standard output when ready; ends with the "
    "process that started it.",
)
@click.option(
    "--join",
    metavar="URL",
    envvar="KORVET_JOIN",
    help="With --ephemeral: share the data of another ephemeral broker, by its `redis` (also KORVET_JOIN).",
)
@click.option(
    "--parent",
    type=int,
    metavar="PID",
    help="With --ephemeral: the process that starts this one, if it may end before this one runs.",
)
def serve(
    *,
    file: Path | None,
    pairs: tuple[str, ...],
    profile: Path | None,
    is_ephemeral: bool,
    join: str | None,
    parent: int | None,
    **flags: object,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Settings come from built-in defaults, the file, KORVET_... variables and flags. Later sources override
    earlier ones.

    The folder --data-dir keeps the data of a private Valkey, which ends with the broker, unless --redis,
    KORVET_REDIS or the file names a Redis.

    Several brokers can share a keyspace, each with its own node ID and address. Start them one by one with
    the same --redis, or together with --processes.

    With --ephemeral, new topics have dense offsets, groups rebalance at once, and the admin endpoint has a
    free port, unless other settings are given. The line is an object with `bootstrap_servers`, `redis`,
    `admin` and `pid`.

    \b
    korvet serve
    korvet serve --redis redis://host:6379 --listen 0.0.0.0:9092 --advertise broker1:9092
    korvet serve --config korvet.toml --processes 4
    korvet serve --ephemeral
    """
    unread.unblock()
    if is_ephemeral:
        ephemeral.end_with(parent)
    elif join is not None or parent is not None:
        raise click.UsageError("--join and --parent need --ephemeral")
    settings = _configure(file, _split(pairs), flags, is_ephemeral=is_ephemeral)
    if is_ephemeral:
        ephemeral.check(settings, join)
    try:
        if is_ephemeral:
            _serve_ephemeral(settings, profile, join)
        else:
            _serve(settings, profile)
    except (click.ClickException, ConfigError, EmbeddedServerError) as error:
        if settings.log_format == "text":
            raise
        # The last line is a JSON object, too.
        logger.critical("%s", error)
        raise SystemExit(1) from error


def _configure(
    file: Path | None, pairs: Mapping[str, str], flags: Mapping[str, object], *, is_ephemeral: bool
) -> Config:
    """Put the settings together, begin to log, and log what is odd about them. Raises ConfigError."""
    memory_bytes = machine_memory_bytes()
    settings = load(
        defaults=ephemeral.DEFAULTS if is_ephemeral else None,
        file=file,
        environ=os.environ,
        flags=flags,
        pairs=pairs,
        memory_bytes=memory_bytes,
    )
    alone = settings.processes == 1
    logs.configure(settings.log_level, settings.log_format, settings.node_id if alone else None)
    if settings.redis and flags["data_dir"] is not None:
        logger.warning("--data-dir is not used: the data are in %s", redacted(settings.redis))
    if needed_bytes(settings) > memory_bytes:
        logger.warning(
            "the memory of this machine or container, %d bytes, is less than korvet may need, %d bytes: the "
            "system may kill it",
            memory_bytes,
            needed_bytes(settings),
        )
    return settings


def _serve(settings: Config, profile: Path | None) -> None:
    _prepare_process()
    server = None if settings.redis else _start_embedded(settings)
    try:
        url = settings.redis or ("" if server is None else server.url)
        ready = _announce(settings, server)
        alone = settings.processes == 1
        probed = here(settings.node_id if alone else None, settings.listener_specs[0].port, settings.data_dir)
        if alone:
            from korvet import broker  # noqa: PLC0415  # see _import_broker

            work: _Work = {"broker": partial(broker.run, settings, url, ready, probed.path)}
        else:
            from korvet.cli import processes  # noqa: PLC0415  # only for several

            work = {"brokers": partial(processes.run, settings, url, ready, profile, probed.path)}
        if server is not None:
            room = Room(server.socket, DiskSpace(server.data_dir, settings.disk_reserve_bytes))
            work["embedded server"] = partial(_watch, server)
            work["room on the disk"] = partial(_keep_room, room)
        _run(work, profile if alone else None)
    finally:
        if server is not None:
            server.stop()


def _serve_ephemeral(settings: Config, profile: Path | None, join: str | None) -> None:
    _prepare_process()
    server = ephemeral.start_server(settings, _import_broker) if join is None else None
    try:
        if join is not None:
            _import_broker()
            ephemeral.wait_for_server(join)
        url = join or ("" if server is None else server.url)
        from korvet import broker  # noqa: PLC0415  # see _import_broker

        # `korvet ready` asks other brokers of the machine, so there is no probe.
        work: _Work = {"broker": partial(broker.run, settings, url, ephemeral.announce(url), ephemeral=True)}
        if server is not None:
            work["server"] = partial(ephemeral.watch, server)
        _run(work, profile)
    finally:
        if server is not None:
            server.stop()


def _run(work: _Work, profile: Path | None) -> None:
    """Run the broker, or its processes, and what belongs to it, until a signal or the end of one."""
    try:
        with profiled(profile) if profile is not None else contextlib.nullcontext():
            uvloop.run(_run_all(work))
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        if error.errno not in _ADDRESS_ERRORS:
            raise
        raise click.ClickException(f"cannot listen on {error.strerror}") from error


def _prepare_process() -> None:
    _keep_large_buffers()
    _allow_all_files()


def _import_broker() -> None:
    """Import what brokers consist of. This takes longer than an empty server takes to start."""
    # Collections among all these modules find nothing.
    gc.disable()
    importlib.import_module("korvet.broker")
    gc.enable()


def _split(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: expected KEY=VALUE")
        found[key] = value
    return found


def _start_embedded(settings: Config) -> EmbeddedServer:
    began = last = time.monotonic()

    def report(loaded_bytes: int, total_bytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - began > _PROGRESS_AFTER_S and now - last > _PROGRESS_AFTER_S:
            last = now
            logger.info("loading %s: %.0f %%", settings.data_dir, 100 * loaded_bytes / max(total_bytes, 1))

    server = EmbeddedServer(
        settings.data_dir,
        appendfsync=settings.embedded_appendfsync,
        module=settings.embedded_module,
        reserve_bytes=settings.disk_reserve_bytes // 2,
        maxmemory_bytes=settings.embedded_maxmemory,
        on_loading=report,
    )
    server.start(_import_broker)
    module = "with" if server.loaded_module else "without"
    limit = f"{settings.embedded_maxmemory} bytes" if settings.embedded_maxmemory else "no limit"
    logger.info(
        "embedded server %s, %s korvet's server module, process %d, maxmemory %s",
        server.binary,
        module,
        server.pid,
        limit,
    )
    return server


async def _run_all(work: _Work) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, loop, stopping)
    tasks = [asyncio.create_task(begin(), name=name) for name, begin in work.items()]
    tasks.append(asyncio.create_task(stopping.wait(), name="signals"))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


def _stop(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Begin an orderly stop. A second signal ends the process at once, unless it follows within a second:
    systemd and others signal all processes of a service, and the first one of these signals the others.
    """
    if stopping.is_set():
        return
    logger.info("stopping")
    stopping.set()
    loop.call_later(_SECOND_SIGNAL_S, _end_at_once, loop)


def _end_at_once(loop: asyncio.AbstractEventLoop) -> None:
    """Let the next signal end the process at once."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def _announce(settings: Config, server: EmbeddedServer | None) -> Ready:
    def ready(address: Address, admin: str) -> None:
        del admin
        store = f"data in {server.data_dir}" if server is not None else redacted(settings.redis or "")
        text = f"korvet is ready on {address} ({store})"
        try:
            ephemeral.tell(text)
        except OSError as error:
            # A full disk, or a reader that has gone. Clients can be served.
            logger.warning("%s, but standard output takes no text: %s", text, error.strerror)

    return ready


async def _watch(server: EmbeddedServer) -> None:
    """Restart the embedded server when it exits, and make it refuse writes while its disk is full.

    Raises EmbeddedServerError if it keeps exiting although there is free space.
    """
    restarts: collections.deque[float] = collections.deque(maxlen=_MOST_RESTARTS)
    pause_s = _FIRST_PAUSE_S
    while True:
        await asyncio.sleep(_SERVER_POLL_S)
        end = server.described_end()
        if end is None:
            pause_s = _FIRST_PAUSE_S
            await _apply_disk_space(server)
            continue
        logger.error("the embedded server %s; restarting it", end)
        now = time.monotonic()
        keeps_ending = len(restarts) == _MOST_RESTARTS and now - restarts[0] < _RESTART_WINDOW_S
        server.disk_space.check()
        if keeps_ending and not server.disk_space.is_short:
            raise EmbeddedServerError(f"the embedded server keeps exiting: it {end}{server.log_tail()}")
        restarts.append(now)
        try:
            server.launch()
            await _wait_ready(server)
        except (EmbeddedServerError, OSError) as error:
            server.disk_space.check()
            if not server.disk_space.is_short:
                raise
            logger.error("the embedded server does not start because its disk is full: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            continue
        logger.info("the embedded server runs again, process %d", server.pid)


async def _wait_ready(server: EmbeddedServer) -> None:
    try:
        await asyncio.get_running_loop().run_in_executor(None, server.wait_ready)
    except asyncio.CancelledError:
        # The end of the event loop waits for the thread, and reading large files takes minutes.
        server.terminate()
        raise


async def _apply_disk_space(server: EmbeddedServer) -> None:
    if not server.disk_space.check():
        return
    try:
        await asyncio.get_running_loop().run_in_executor(None, server.apply_disk_space)
    except ProbeError as error:
        # The server is stopping or busy. The next check tries again.
        server.disk_space.is_short = not server.disk_space.is_short
        logger.warning("the embedded server does not yet know its disk's free space: %s", error)
        return
    free_bytes = server.disk_space.free_bytes
    if server.disk_space.is_short:
        logger.error("the embedded server refuses all writes: its disk has %d bytes left", free_bytes)
    else:
        logger.info("the embedded server accepts writes again: its disk has %d bytes free", free_bytes)


async def _keep_room(room: Room) -> None:
    """Free the space of what was deleted, while records are refused because the disk is short."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_ROOM_POLL_S)
        try:
            if await loop.run_in_executor(None, room.make, time.monotonic()):
                logger.info("the embedded server rewrites its append-only file, which holds deleted data")
        except ProbeError as error:
            # The server is stopping, busy, or rewrites its file already.
            logger.debug("the append-only file is not rewritten: %s", error)


def _allow_all_files() -> None:
    """Raise the limit of open files to the hard limit. Each client takes one; the usual limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except ValueError as error:
        # Some systems report "unlimited" but don't accept it.
        logger.debug("the limit of open files is unchanged: %s", error)


def _keep_large_buffers() -> None:
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in _MALLOC_SETTINGS:
            libc.mallopt(option, value)

"""`korvet serve --processes N`: several brokers on one keyspace, each with its own process, port and node ID.

This process serves no clients. It starts the brokers, waits until all are ready, restarts a broker that
exits, and stops all together.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import logging
import re
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from korvet.admin.handover import ON_STANDARD_INPUT
from korvet.admin.merged import MergedService
from korvet.config.address import Address, parse_address
from korvet.config.errors import ConfigError
from korvet.config.fields import key_of
from korvet.config.keys import clean_environment, key_of_listener, settings, variable_of
from korvet.config.machine_memory import described_end, memory_kills
from korvet.embedded.shim import bound
from korvet.security.listeners import parse_endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from korvet.admin.handover import Handover
    from korvet.broker import Ready
    from korvet.config.settings import Config
    from korvet.security.listeners import Endpoint

logger = logging.getLogger(__name__)

_READY: Final = re.compile(r"korvet is ready on (\S+) ")
# Limits the restarts of a broker within the window below. A broker that keeps exiting has a fault that its
# log explains.
_MOST_RESTARTS: Final = 5
_RESTART_WINDOW_S: Final = 60.0
# Longest wait for an orderly stop: brokers answer pending requests first.
_STOP_TIMEOUT_S: Final = 30.0
_HIGHEST_PORT: Final = 65535


class ProcessesError(click.ClickException):
    """The brokers can't be kept running."""


def broker_configs(config: Config) -> list[Config]:
    """Returns the settings of each broker: ports and node IDs count up from the configured ones.

    Port 0 stays 0 (any free port), except in `listeners`, which need fixed ports. Raises ConfigError if a
    port would exceed 65535.
    """
    listening = parse_endpoints(config.listeners or "")
    advertised = parse_endpoints(config.advertised_listeners or "")
    addresses = [config.listen_address, config.advertise_address, *listening, *advertised]
    admin = config.admin_address
    most = [each.port + config.processes - 1 for each in addresses if each is not None]
    if admin is not None:
        most.append(admin.port + config.processes)
    if max(most) > _HIGHEST_PORT:
        raise ConfigError(f"processes = {config.processes}: a port would exceed 65535")
    ports = sorted(endpoint.port for endpoint in listening)
    if any(
        port < before + config.processes
        for before, port in itertools.pairwise([1 - config.processes, *ports])
    ):
        raise ConfigError(
            f"listeners = {config.listeners}: processes need ports that are {config.processes} or more apart"
        )
    if admin is not None and admin.port:
        _check_admin_ports(config, admin.port, ports or [config.listen_address.port])
    return [
        msgspec.structs.replace(
            config,
            processes=1,
            node_id=config.node_id + number,
            # The first port is this process's own.
            admin_listen="" if admin is None else _moved(admin, number + 1),
            admin_socket=ON_STANDARD_INPUT if config.serves_admin else None,
            listen=_moved(config.listen_address, number),
            advertise=config.advertise_address and _moved(config.advertise_address, number),
            listeners=_all_moved(listening, number),
            advertised_listeners=_all_moved(advertised, number),
        )
        for number in range(config.processes)
    ]


def _check_admin_ports(config: Config, first: int, listening: Iterable[int]) -> None:
    last = first + config.processes
    if any(port <= last and first < port + config.processes for port in listening):
        raise ConfigError(
            f"admin.listen = {config.admin_listen}: its ports {first} to {last} are those of listeners, too"
        )


def environment(config: Config) -> dict[str, str]:
    """Returns the environment of `korvet serve` with this config, plus our variables that aren't settings.

    It lacks empty values, see `arguments`.
    """
    environ = clean_environment()
    for setting in settings():
        value = getattr(config, setting.field)
        if value is not None:
            environ[setting.variable] = str(value).lower() if isinstance(value, bool) else str(value)
    for listener, field, value in config.listener_settings:
        environ[variable_of(key_of_listener(listener, key_of(field)))] = str(value)
    return environ


def arguments(config: Config) -> list[str]:
    """Returns the arguments of `korvet serve` with this config: an empty variable would count as not set."""
    keys = [each.key for each in settings() if each.default != "" and getattr(config, each.field) == ""]
    own = config.listener_settings
    keys += [key_of_listener(each.listener, key_of(each.field)) for each in own if each.value == ""]
    return [f"--set={key}=" for key in keys]


def _moved(address: Address, number: int) -> str:
    return str(address._replace(port=address.port + number if address.port else 0))


def _all_moved(endpoints: Iterable[Endpoint], number: int) -> str | None:
    moved = (f"{name}://{_moved(Address(host, port), number)}" for name, host, port in endpoints)
    return ",".join(moved) or None


class _Broker:
    """One broker: a process that is restarted when it exits by itself."""

    def __init__(self, config: Config, profile: Path | None, handover: Handover) -> None:
        """`handover`: connects to the admin endpoint of the process."""
        self._config = config
        self._handover = handover
        self._profile = profile
        self._process: asyncio.subprocess.Process | None = None
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The address that clients connect to; None before the broker is ready."""

    async def run(self) -> None:
        """Keep the broker running until cancelled. Raises ProcessesError if it exits before it was ready, or
        keeps exiting.
        """
        restarts: collections.deque[float] = collections.deque(maxlen=_MOST_RESTARTS)
        while True:
            kills = memory_kills()
            end = described_end(await self._run_once(), kills)
            now = time.monotonic()
            name = f"the broker process of node {self._config.node_id}"
            if not self.address.done():
                raise ProcessesError(f"{name} {end}")
            if len(restarts) == _MOST_RESTARTS and now - restarts[0] < _RESTART_WINDOW_S:
                raise ProcessesError(f"{name} keeps exiting: it {end}")
            restarts.append(now)
            logger.error("%s %s; restarting it", name, end)

    async def _run_once(self) -> int:
        command = [sys.executable, "-m", "korvet", "serve", *arguments(self._config)]
        if self._profile is not None:
            command += ["--profile", f"{self._profile}.{self._config.node_id}"]
        # A session of its own: Ctrl-C in a terminal reaches only this process, which then stops the brokers.
        with self._handover.renew() as stdin:
            process = self._process = await asyncio.create_subprocess_exec(
                *bound(command),
                stdin=stdin.fileno(),
                stdout=asyncio.subprocess.PIPE,
                env=environment(self._config),
                start_new_session=True,
            )
        logger.info("node %d is process %d", self._config.node_id, process.pid)
        assert process.stdout is not None
        async for line in process.stdout:
            found = _READY.match(line.decode())
            if found is not None and not self.address.done():
                self.address.set_result(found[1])
                self._keep_port(found[1])
        return await process.wait()

    def _keep_port(self, address: str) -> None:
        """Restart on the port that the system chose for port 0, because clients know it."""
        config = self._config
        if config.listeners is None and config.listen_address.port == 0 and config.advertise is None:
            port = int(address.rpartition(":")[2])
            listen = str(self._config.listen_address._replace(port=port))
            self._config = msgspec.structs.replace(self._config, listen=listen)

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has exited."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> None:
        """Wait for the exit, and kill the process if it takes too long."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S + self._config.drain_wait_ms / 1000):
                await self._process.wait()
        except TimeoutError:
            logger.error("node %d does not stop; killing it", self._config.node_id)
            self._process.kill()
            await self._process.wait()
            return
        status = self._process.returncode
        if status:
            logger.error("node %d has not stopped in order: status %d", self._config.node_id, status)


async def run(config: Config, redis_url: str, ready: Ready, profile: Path | None, probe: str) -> None:
    """Keep `config.processes` brokers running until cancelled. `probe`: see MergedService.

    Calls `ready(address, admin)` once all accept clients, with the address of the first broker and the URL of
    the admin endpoint (empty without one). Raises ConfigError,
    ProcessesError, and OSError if the admin endpoint cannot listen.
    """
    configs = broker_configs(msgspec.structs.replace(config, redis=redis_url))
    admin = MergedService(config, [each.node_id for each in configs], probe)
    try:
        handovers = await admin.start()
        brokers = [_Broker(each, profile, handovers[each.node_id]) for each in configs]
        await _run(brokers, lambda address: ready(address, admin.url(address.host)))
    finally:
        await admin.close()


async def _run(brokers: list[_Broker], ready: Callable[[Address], None]) -> None:
    tasks = [asyncio.create_task(broker.run()) for broker in brokers]
    addresses = asyncio.gather(*(broker.address for broker in brokers))
    try:
        waited: list[asyncio.Future[Any]] = [addresses, *tasks]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if addresses.done():
            ready(parse_address(addresses.result()[0]))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        addresses.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(addresses, *tasks, return_exceptions=True)
        for broker in brokers:
            broker.terminate()
        await asyncio.gather(*(broker.ended() for broker in brokers))

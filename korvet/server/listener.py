"""The listening sockets, and the number of clients for which the process has files."""

from __future__ import annotations

import asyncio
import logging
import resource
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from korvet.config.address import Address
from korvet.config.broker_settings import parse_overrides
from korvet.config.errors import ConfigError
from korvet.config.fields import in_variable
from korvet.security.listeners import is_unspecified
from korvet.server.acceptor import Acceptor, bind
from korvet.server.connection import Connection
from korvet.server.connections import ConnectionLimits, Connections
from korvet.server.listener_access import ConfiguredAccess, ListenerAccess
from korvet.server.tls import ServerTls, context_of
from korvet.server.token_checks import listener_tokens
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from korvet.config.live import LiveConfig
    from korvet.config.settings import Config
    from korvet.quotas.throttle import ClientQuotas
    from korvet.security.authorizer import Authorizer
    from korvet.security.credentials import Credentials
    from korvet.security.listeners import ListenerSpec
    from korvet.server.certificates import UsedCertificate
    from korvet.server.dispatch import Dispatcher
    from korvet.server.token_checks import ListenerTokens

log = logging.getLogger(__name__)

_DRAIN_TIMEOUT_S: Final = 5.0
# Open files other than client connections, at least: links to Redis, the embedded server's pipes, logs,
# libraries. With a Redis cluster of many nodes there are hundreds, so large limits leave a share for them.
_OTHER_FILES: Final = 64
_OTHER_FILES_SHARE: Final = 16
_LEAST_CONNECTIONS: Final = 16
# Connections below which a warning is logged: a cluster of usual size reaches such a limit.
_FEW_CONNECTIONS: Final = 4000


class Listener:
    """The listening sockets and the connections accepted from them."""

    def __init__(
        self, live: LiveConfig, authorizer: Authorizer | None, credentials: Credentials, quotas: ClientQuotas
    ) -> None:
        """Raises ConfigError if the files of a TLS listener cannot be used, or tokens cannot be checked."""
        self._live = live
        config = live.now
        specs = config.listener_specs
        self._specs = specs
        self._room = room_for_connections()
        self._connections = Connections(self._limits(config), quotas)
        self._tls = {
            spec.name: ServerTls(spec.name, mine, client_auth(mine, spec))
            for spec, mine in self._encrypted(config)
        }
        tokens = (listener_tokens(spec, config.of_listener(spec.name)) for spec in specs)
        self._tokens = {each.listener: each for each in tokens if each is not None}
        self._fetches: dict[str, asyncio.Task[None]] = {}
        """The tasks that fetch keys, by listener."""
        checks = {name: each.check for name, each in self._tokens.items()}
        self._access = {
            spec.name: ConfiguredAccess(
                spec, config.of_listener(spec.name), authorizer, credentials, checks.get(spec.name)
            )
            for spec in specs
        }
        self._acceptors: dict[str, Acceptor] = {}
        self._dispatch: Dispatcher | None = None
        self._watches: list[asyncio.Task[None]] = []
        live.guard(self._check)
        live.follow(self._follow)

    def _limits(self, config: Config) -> ConnectionLimits:
        listeners = {spec.name: config.of_listener(spec.name) for spec in self._specs}
        own_rates = {
            each.listener for each in config.listener_settings if each.field == "max_connection_creation_rate"
        }
        return ConnectionLimits(
            min(config.max_connections, self._room),
            config.max_connections_per_ip,
            config.connections_max_idle_ms,
            config.connections_setup_timeout_ms,
            {name: mine.max_connections for name, mine in listeners.items()},
            parse_overrides(config.max_connections_per_ip_overrides),
            config.max_connection_creation_rate,
            {
                name: mine.max_connection_creation_rate
                for name, mine in listeners.items()
                if in_variable(name) in own_rates
            },
        )

    def _encrypted(self, config: Config) -> list[tuple[ListenerSpec, Config]]:
        """The listeners with TLS, with their settings."""
        return [(spec, config.of_listener(spec.name)) for spec in self._specs if spec.encrypted]

    def _check(self, config: Config, names: Collection[str]) -> None:
        """Raises ConfigError if settings of TLS are altered and the files of a listener cannot be used, or if
        a listener would have OAUTHBEARER that had not when the broker started: what checks its tokens is made
        at the start only.
        """
        for spec in self._specs:
            if config.of_listener(spec.name).takes_tokens(spec) and spec.name not in self._tokens:
                raise ConfigError(f"OAUTHBEARER on listener {spec.name} needs a restart of the broker")
        if any("ssl." in name for name in names):
            for spec, mine in self._encrypted(config):
                context_of(mine, client_auth(mine, spec))

    def _follow(self, config: Config) -> None:
        """Use changed settings for new connections."""
        self._connections.limit(self._limits(config))
        for spec, mine in self._encrypted(config):
            self._tls[spec.name].follow(mine, client_auth(mine, spec))
        for name, access in self._access.items():
            access.follow(config.of_listener(name))
        if self._dispatch is not None:
            self._fetch_keys()

    async def bind(self) -> dict[str, Address]:
        """Bind the addresses, without accepting yet. Returns by listener the address that clients are given.

        Raises OSError if an address can't be listened on.
        """
        return {spec.name: await self._bind(spec) for spec in self._specs}

    async def _bind(self, spec: ListenerSpec) -> Address:
        tls = self._tls.get(spec.name)
        setup_timeout_s = self._live.now.connections_setup_timeout_ms / 1000
        sockets = await bind(spec.host, spec.port)
        acceptor = Acceptor(spec.name, sockets, self._connections, tls, setup_timeout_s)
        self._acceptors[spec.name] = acceptor
        self._access[spec.name].port = acceptor.port
        if spec.advertised is not None:
            return Address(spec.advertised.host, spec.advertised.port)
        if not is_unspecified(spec.host):
            return Address(spec.host, acceptor.port)
        advertised = Address("localhost", acceptor.port)
        log.warning(
            "listener %s accepts clients on every address, and tells them to connect to %s: clients on other "
            "machines need --advertise, or advertised.listeners",
            spec.name,
            advertised,
        )
        return advertised

    async def start(self, dispatch: Dispatcher) -> None:
        """Accept clients. Raises OSError if an address can't be listened on."""
        self._dispatch = dispatch
        self._watches.append(keep("connections", self._connections.keep_watch))
        for tls in self._tls.values():
            self._watches.append(keep("TLS files", tls.keep_up))
        self._fetch_keys()
        for spec in self._specs:
            self._acceptors[spec.name].start(partial(self._connect, self._access[spec.name]))

    def _fetch_keys(self) -> None:
        """Fetch the keys of the listeners that take tokens now, and of no others."""
        wanted = {each.listener: each.keys for each in self.tokens if each.keys is not None}
        for name in self._fetches.keys() - wanted.keys():
            self._fetches.pop(name).cancel()
        for name in wanted.keys() - self._fetches.keys():
            self._fetches[name] = keep("keys for tokens", wanted[name].run)

    @property
    def tokens(self) -> list[ListenerTokens]:
        """The tokens of the listeners that have OAUTHBEARER now."""
        now = self._live.now
        taking = (spec.name for spec in self._specs if now.of_listener(spec.name).takes_tokens(spec))
        return [self._tokens[name] for name in taking]

    @property
    def connections(self) -> Connections:
        """The open connections, with what is counted of them."""
        return self._connections

    @property
    def certificates(self) -> list[UsedCertificate]:
        """The certificates of all listeners."""
        return [each for tls in self._tls.values() for each in tls.certificates]

    async def wait_empty(self) -> None:
        """Return when no connection is open."""
        await self._connections.empty.wait()

    async def stop(self) -> None:
        """Accept no more clients, answer the requests in progress, and close all connections."""
        for acceptor in self._acceptors.values():
            acceptor.close()
        await end(*self._watches, *self._fetches.values())
        for connection in self._connections:
            # It takes no more requests.
            connection.closing = True
        if self._dispatch is not None:
            await _within(self._dispatch.finish(), _DRAIN_TIMEOUT_S)
        for connection in self._connections:
            connection.shut_down()

    def _connect(self, listener_access: ListenerAccess, leave: Callable[[], None]) -> Connection:
        assert self._dispatch is not None
        connection = Connection(
            self._dispatch, self._live.now.socket_request_max_bytes, self._connections, listener_access
        )
        connection.on_disconnect(leave)
        return connection


def client_auth(config: Config, spec: ListenerSpec) -> str:
    """Whether the listener's clients present certificates. As in Kafka, a SASL_SSL listener has only its own
    setting (KIP-684). `config` is the result of Config.of_listener.
    """
    own = ("ssl_client_auth", in_variable(spec.name))
    if spec.authenticates and own not in {(each.field, each.listener) for each in config.listener_settings}:
        return "none"
    return config.ssl_client_auth


def room_for_connections() -> int:
    """The number of clients within the process's limit of open files (RLIMIT_NOFILE).

    Without a limit of our own, the kernel would refuse the next file, which might be the link to Redis.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 2**31 - 1
    room = max(limit - max(_OTHER_FILES, limit // _OTHER_FILES_SHARE), _LEAST_CONNECTIONS)
    if room < _FEW_CONNECTIONS:
        log.warning(
            "no more than %d clients can connect: the process may open %d files only (ulimit -Hn)",
            room,
            limit,
        )
    return room


async def _within(work: Coroutine[Any, Any, None], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        log.warning("requests are still in progress after %.0f s; their connections are closed", timeout_s)

"""KorvetBroker: brokers for tests, each a process, and the server that holds their data."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from korvet.embedded.ephemeral import EphemeralServer, reserved_port
from korvet.embedded.errors import EmbeddedServerError
from korvet.testing.errors import KorvetBrokerError
from korvet.testing.faults import Faults
from korvet.testing.process import BrokerProcess
from korvet.testing.security import Security, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from korvet.config.address import Address
    from korvet.testing.record import Record
    from korvet.testing.verbs import Verbs


Given = ParamSpec("Given")
Result = TypeVar("Result")

_MODULE: Final = "auto"
_NO_LIMIT: Final = 0
_SUPER_USERS: Final = "super.users"
# Settings that a KorvetBroker makes itself, so that its properties tell where everything is.
_OWN: Final = frozenset(
    {
        "admin.listen",
        "advertise",
        "advertised.listeners",
        "data_dir",
        "listen",
        "listeners",
        "node_id",
        "processes",
        "redis",
    }
)
_GROUP_TIMEOUT_S: Final = 30.0


class KorvetBroker:
    """A Kafka broker with its own empty data, from the beginning of a `with` or `async with` to its end.

    New topics have dense offsets from 0 and are created by their first use; groups don't wait for more
    members. Data are in memory only. Processes end with this one, whatever ends it, and leave no files.

    `settings` are settings of `korvet serve`, such as `{"num.partitions": 3}`. Several `brokers` share the
    data. With `tls`, clients trust `ca_file`. With `users` (passwords by name), clients authenticate with
    PLAIN or SCRAM.

    Methods raise KorvetBrokerError, and block; `aio` has the same as coroutines.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        brokers: int = 1,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: expected at least 1")
        if refused := _OWN.intersection(settings or ()):
            raise ValueError(f"settings: {', '.join(sorted(refused))}: a KorvetBroker sets this itself")
        self.aio = AsyncVerbs(self)
        self.faults = Faults(self._admin_urls)
        """What clients meet when a test asks for it."""
        self._settings = {key: _text(value) for key, value in (settings or {}).items()}
        self._count = brokers
        self._tls = tls
        self._users = dict(users or {})
        self._server: EphemeralServer | None = None
        self._brokers: list[BrokerProcess] = []
        self._security: Security | None = None
        self._verbs: Verbs | None = None
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of each broker, separated by commas. They stay the same across restarts."""
        return ",".join(str(broker.address) for broker in self._started())

    @property
    def redis_url(self) -> str:
        """The URL of the server that holds the data, with its password."""
        self._started()
        assert self._server is not None
        return self._server.url

    @property
    def admin_url(self) -> str:
        """The URL of the first broker's admin endpoint: metrics, health, status."""
        return self._started()[0].admin_url

    @property
    def security_protocol(self) -> str:
        """What clients set as `security.protocol`."""
        self._started()
        assert self._security is not None
        return self._security.protocol

    @property
    def ca_file(self) -> str:
        """A PEM file with the authority that clients trust. With `tls` only."""
        if self._security is None or self._security.ca_file is None:
            raise KorvetBrokerError("there is a ca_file after a start with tls=True")
        return self._security.ca_file

    def start(self) -> None:
        """Start everything, or the brokers that were stopped, on their addresses and with their data.

        If that fails, it is as before: what was started is stopped again, data are kept, and `start` may be
        tried again.
        """
        if self._brokers:
            self._start_again()
            return
        try:
            for broker in self._launch_all():
                broker.wait_ready()
            for user, password in self._users.items():
                self._client().set_password(user, password)
        except BaseException:
            self.close()
            raise

    def stop(self, *, abruptly: bool = False, node_id: int | None = None) -> None:
        """Stop the brokers, with SIGKILL if `abruptly`; `start` continues with their data. `node_id`: only
        this one; the IDs count from 1.
        """
        chosen = [broker for broker in self._started() if node_id in (None, broker.node_id)]
        if not chosen:
            raise ValueError(f"node_id={node_id}: expected a number from 1 to {self._count}")
        self._client().disconnect()
        with contextlib.ExitStack() as every:
            for broker in chosen:
                every.callback(broker.stop, abruptly=abruptly)

    def restart(self, *, abruptly: bool = False, node_id: int | None = None) -> None:
        """Stop the brokers, or one, and start them again on their addresses and with their data. If that
        fails, they are stopped; see `start`.
        """
        self.stop(abruptly=abruptly, node_id=node_id)
        self.start()

    def close(self) -> None:
        """End everything. Data are gone. Does nothing if nothing was started."""
        brokers, self._brokers = self._brokers, []
        server, self._server = self._server, None
        verbs, self._verbs = self._verbs, None
        self._security = None
        with self._cleanup:
            if verbs is not None:
                verbs.disconnect()
            for broker in brokers:
                # Nobody misses what an orderly stop writes.
                broker.stop(abruptly=True)
            if server is not None:
                server.stop()

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic, and return when all brokers know it."""
        texts = {key: _text(value) for key, value in (configs or {}).items()}
        self._client().create_topic(name, partitions, texts)

    def records(self, topic: str) -> list[Record]:
        """Returns all records of a topic, sorted by partition and offset. Those of open and aborted
        transactions are among them, as for consumers with `isolation.level=read_uncommitted`.
        """
        return self._client().records(topic)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Returns the committed offsets of a group by topic and partition; empty without any."""
        return self._client().committed(group)

    def depth(self, group: str) -> dict[tuple[str, int], int]:
        """Returns the number of records that a share group has neither accepted nor archived, by topic and
        partition (-1: not counted yet); empty without a share group of that name.
        """
        return self._client().depth(group)

    def wait_for_group(self, group: str, members: int = 1, timeout_s: float = _GROUP_TIMEOUT_S) -> None:
        """Wait until a group of any type has exactly so many members, all with their partitions."""
        self._client().wait_for_group(group, members, timeout_s)

    def _started(self) -> list[BrokerProcess]:
        if not self._brokers:
            raise KorvetBrokerError("the broker was not started: use `with KorvetBroker() as broker`")
        return self._brokers

    def _admin_urls(self) -> list[str]:
        urls = [broker.admin_url for broker in self._started() if broker.runs]
        if not urls:
            raise KorvetBrokerError("no broker runs: `start` starts them")
        return urls

    def _client(self) -> Verbs:
        self._started()
        assert self._verbs is not None
        return self._verbs

    def _start_again(self) -> None:
        stopped = [broker for broker in self._brokers if not broker.runs]
        try:
            for broker in stopped:
                broker.launch(self.redis_url)
            for broker in stopped:
                broker.wait_ready()
        except BaseException:
            for broker in stopped:
                broker.stop(abruptly=True)
            raise

    def _launch_all(self) -> list[BrokerProcess]:
        """Start the server and the brokers at the same time. Returns the brokers, which are not ready yet."""
        self._server = server = EphemeralServer(_MODULE, _NO_LIMIT)
        self._security = security = prepare(
            tls=self._tls,
            users=bool(self._users),
            super_users=self._settings.get(_SUPER_USERS, ""),
            files=self._cleanup,
        )
        for number in range(self._count):
            # Reserved to the end, so that a restart finds the port free.
            address = self._cleanup.enter_context(reserved_port())
            options = self._options(security, address)
            self._brokers.append(BrokerProcess(number + 1, address, options, security.variables, server.log))

        def meanwhile() -> None:
            for broker in self._brokers:
                broker.stop(abruptly=True)
                broker.launch(server.url)
            importlib.import_module("korvet.testing.verbs")

        try:
            server.start(meanwhile)
        except EmbeddedServerError as error:
            raise KorvetBrokerError(str(error)) from error
        from korvet.testing.verbs import Verbs  # noqa: PLC0415  # imported meanwhile

        self._verbs = Verbs(self.bootstrap_servers, security.client)
        return self._brokers

    def _options(self, security: Security, address: Address) -> Sequence[str]:
        own = {key: value for key, value in self._settings.items() if key != _SUPER_USERS or not self._users}
        return [*security.listener(address), *(f"--set={key}={value}" for key, value in own.items())]


def _in_thread(
    method: Callable[Concatenate[KorvetBroker, Given], Result],
) -> Callable[Concatenate[AsyncVerbs, Given], Coroutine[Any, Any, Result]]:
    @functools.wraps(method)
    async def run(verbs: AsyncVerbs, /, *args: Given.args, **named: Given.kwargs) -> Result:
        return await asyncio.to_thread(method, verbs._broker, *args, **named)

    return run


class AsyncVerbs:
    """The methods of a KorvetBroker as coroutines, which leave the event loop to the clients under test."""

    def __init__(self, broker: KorvetBroker) -> None:
        self._broker = broker

    start = _in_thread(KorvetBroker.start)
    stop = _in_thread(KorvetBroker.stop)
    restart = _in_thread(KorvetBroker.restart)
    create_topic = _in_thread(KorvetBroker.create_topic)
    records = _in_thread(KorvetBroker.records)
    committed = _in_thread(KorvetBroker.committed)
    depth = _in_thread(KorvetBroker.depth)
    wait_for_group = _in_thread(KorvetBroker.wait_for_group)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

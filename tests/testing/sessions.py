"""A producer and a consumer of three clients, with the same methods. They return errors as the client names
them.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from confluent_kafka import Consumer, KafkaException, Producer

from tests.support.java import JavaTools

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

WAIT_S: Final = 120
_HEARTBEAT_MS: Final = 200
# As clients have them by themselves.
_REQUEST_TIMEOUT_MS: Final = 30_000
_TRANSACTION_TIMEOUT_MS: Final = 60_000


class Timeouts(NamedTuple):
    """Of a producer, in milliseconds."""

    request: int = _REQUEST_TIMEOUT_MS
    transaction: int = _TRANSACTION_TIMEOUT_MS


_USUAL: Final = Timeouts()


class Session(Protocol):
    """What a test does with a client. A result is empty, or an error."""

    told: list[str]
    """What the consumer was told of its partitions."""

    def producer(self, *, idempotent: bool, transactional_id: str | None = None) -> str: ...
    def send(self, topic: str, value: str) -> str: ...
    def begin(self) -> str: ...
    def commit_transaction(self) -> str: ...
    def abort_transaction(self) -> str: ...
    def subscribe(self, group: str, topic: str) -> str: ...
    def poll(self) -> list[str]: ...
    def member(self) -> str: ...
    def commit(self) -> str: ...
    def close(self) -> None: ...


class Librdkafka:
    """By confluent-kafka."""

    def __init__(self, bootstrap: str, timeouts: Timeouts = _USUAL) -> None:
        self.told: list[str] = []
        self._bootstrap = bootstrap
        self._timeouts = timeouts
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._ended: Any = None

    def producer(self, *, idempotent: bool, transactional_id: str | None = None) -> str:
        settings = {"bootstrap.servers": self._bootstrap, "enable.idempotence": idempotent}
        if transactional_id is None:
            self._producer = Producer({**settings, "socket.timeout.ms": self._timeouts.request})
            return ""
        # The client itself lets requests end before their transaction.
        self._producer = Producer(
            {
                **settings,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": self._timeouts.transaction,
            }
        )
        return self._attempt(self._producer.init_transactions, WAIT_S)

    def send(self, topic: str, value: str) -> str:
        producer = self._producer
        assert producer is not None

        def produce() -> None:
            self._ended = None
            producer.produce(topic, value.encode(), on_delivery=self._note)
            assert producer.flush(WAIT_S) == 0
            if self._ended is not None:
                raise KafkaException(self._ended)

        return self._attempt(produce)

    def _note(self, error: Any, message: object) -> None:
        self._ended = error

    def begin(self) -> str:
        assert self._producer is not None
        return self._attempt(self._producer.begin_transaction)

    def commit_transaction(self) -> str:
        assert self._producer is not None
        return self._attempt(self._producer.commit_transaction, WAIT_S)

    def abort_transaction(self) -> str:
        assert self._producer is not None
        return self._attempt(self._producer.abort_transaction, WAIT_S)

    def subscribe(self, group: str, topic: str) -> str:
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": _HEARTBEAT_MS,
            }
        )
        self._consumer.subscribe(
            [topic],
            on_assign=lambda *_: self.told.append("assigned"),
            on_revoke=lambda *_: self.told.append("revoked"),
            on_lost=lambda *_: self.told.append("lost"),
        )
        return ""

    def poll(self) -> list[str]:
        assert self._consumer is not None
        found = [record for record in self._consumer.consume(100, 0.1) if record.error() is None]
        return [record.value().decode() for record in found]

    def member(self) -> str:
        assert self._consumer is not None
        return str(self._consumer.memberid())

    def commit(self) -> str:
        consumer = self._consumer
        assert consumer is not None
        return self._attempt(lambda: consumer.commit(asynchronous=False))

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    @staticmethod
    def _attempt(work: Callable[..., object], *arguments: object) -> str:
        try:
            work(*arguments)
        except KafkaException as error:
            return str(error.args[0].name())
        except SystemError as error:
            # The client called back while its fatal error was pending.
            return str(error.__cause__.args[0].name())  # type: ignore[union-attr]
        return ""


class Aiokafka(ConsumerRebalanceListener):  # type: ignore[misc]
    """In an event loop of its own."""

    def __init__(self, bootstrap: str, timeouts: Timeouts = _USUAL) -> None:
        self.told: list[str] = []
        self._bootstrap = bootstrap
        self._timeouts = timeouts
        self._producer: AIOKafkaProducer | None = None
        self._consumer: AIOKafkaConsumer | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def producer(self, *, idempotent: bool, transactional_id: str | None = None) -> str:
        async def start() -> None:
            self._producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                enable_idempotence=idempotent,
                transactional_id=transactional_id,
                request_timeout_ms=self._timeouts.request,
                transaction_timeout_ms=self._timeouts.transaction,
            )
            await self._producer.start()

        return self._attempt(start())

    def send(self, topic: str, value: str) -> str:
        assert self._producer is not None
        return self._attempt(self._producer.send_and_wait(topic, value.encode()))

    def begin(self) -> str:
        assert self._producer is not None
        return self._attempt(self._producer.begin_transaction())

    def commit_transaction(self) -> str:
        assert self._producer is not None
        return self._attempt(self._producer.commit_transaction())

    def abort_transaction(self) -> str:
        assert self._producer is not None
        return self._attempt(self._producer.abort_transaction())

    def subscribe(self, group: str, topic: str) -> str:
        async def start() -> None:
            self._consumer = AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=_HEARTBEAT_MS,
            )
            self._consumer.subscribe([topic], listener=self)
            await self._consumer.start()

        return self._attempt(start())

    async def on_partitions_revoked(self, revoked: object) -> None:
        """See ConsumerRebalanceListener."""
        if revoked:
            self.told.append("revoked")

    async def on_partitions_assigned(self, assigned: object) -> None:
        """See ConsumerRebalanceListener."""
        self.told.append("assigned")

    def poll(self) -> list[str]:
        assert self._consumer is not None
        found = self._run(self._consumer.getmany(timeout_ms=100))
        return [record.value.decode() for records in found.values() for record in records]

    def member(self) -> str:
        assert self._consumer is not None
        return str(self._consumer._coordinator.member_id)

    def commit(self) -> str:
        assert self._consumer is not None
        return self._attempt(self._consumer.commit())

    def close(self) -> None:
        for each in (self._consumer, self._producer):
            if each is not None:
                # A producer that was fenced does not end without its error.
                self._attempt(each.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def _attempt(self, work: Coroutine[Any, Any, Any]) -> str:
        try:
            self._run(work)
        except Exception as error:  # noqa: BLE001 - compared by its name
            return type(error).__name__
        return ""


class Java:
    """By tests/clients/java/FaultSession.java, whose process serves one session after the other."""

    _idle: ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(self, bootstrap: str, timeouts: Timeouts = _USUAL) -> None:
        self.told: list[str] = []
        self._process = self._idle.pop() if self._idle else self._started()
        self._ask("connect", bootstrap, *map(str, timeouts))

    @staticmethod
    def _started() -> subprocess.Popen[str]:
        command, pipe = JavaTools.resolve().command("FaultSession", []), subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def producer(self, *, idempotent: bool, transactional_id: str | None = None) -> str:
        return self._ask(
            "producer", str(idempotent).lower(), *([transactional_id] if transactional_id else [])
        )

    def send(self, topic: str, value: str) -> str:
        return self._ask("send", topic, value)

    def begin(self) -> str:
        return self._ask("begin")

    def commit_transaction(self) -> str:
        return self._ask("commit_transaction")

    def abort_transaction(self) -> str:
        return self._ask("abort_transaction")

    def subscribe(self, group: str, topic: str) -> str:
        return self._ask("subscribe", group, topic)

    def poll(self) -> list[str]:
        return self._ask("poll").split()

    def member(self) -> str:
        return self._ask("member")

    def commit(self) -> str:
        return self._ask("commit")

    def close(self) -> None:
        try:
            self._ask("close")
        except BaseException:
            self._process.kill()
            raise
        self._idle.append(self._process)

    def _ask(self, *words: str) -> str:
        sent, answers = self._process.stdin, self._process.stdout
        assert sent is not None
        assert answers is not None
        print(*words, file=sent, flush=True)
        for line in answers:
            kind, _, text = line.strip().partition(" ")
            if kind == "=":
                return text
            assert kind == "told", line
            self.told.append(text)
        raise AssertionError("the session has ended")

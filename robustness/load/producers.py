"""Producers of librdkafka: plain, idempotent and transactional ones."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from robustness.history import UNKNOWN, Admin, Send, Txn
from robustness.load.pace import Pace
from robustness.load.worker import LIBRDKAFKA, REQUEST_TIMEOUT_S, Worker, as_partitions, silent_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from robustness.clients import Recorder
    from robustness.history import Place
    from robustness.plan import ProducerPlan

# Limits records without an answer, so that a producer ends soon after a fault.
IN_FLIGHT: Final = 500
PAUSE_S: Final = 0.02
# After a record has timed out, an idempotent producer of librdkafka takes another epoch, and may write again
# what it has in flight to other partitions. So no record should time out.
MESSAGE_TIMEOUT_MS: Final = 600_000
FLUSH_TIMEOUT_S: Final = 60.0
# Limits the repetitions of a step of a transaction.
STEP_TIMEOUT_S: Final = 30.0


# Producers that hang: to end them would hang, too.
_LEFT_BEHIND: Final[list[Producer]] = []


class Abandoned(Exception):
    """The producer can't be used any more: its successor takes over."""


class Consumed(NamedTuple):
    """The offsets that a transaction commits for a member of a group."""

    group: str
    places: tuple[Place, ...]
    member: Any


class Session:
    """A producer from its start to its end: one process of the history."""

    def __init__(
        self, worker: Worker, recorder: Recorder, bootstrap: str, process: str, plan: ProducerPlan
    ) -> None:
        self._worker = worker
        self._record = recorder
        self._process = process
        self._plan = plan
        self._serial = 0
        self._txn: str | None = None
        self.outstanding = 0
        self.failed = 0
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": plan.acks,
            "enable.idempotence": plan.kind != "plain",
            "linger.ms": plan.linger_ms,
            "message.timeout.ms": MESSAGE_TIMEOUT_MS,
            "retry.backoff.ms": 50,
            "retry.backoff.max.ms": 500,
            **LIBRDKAFKA,
        }
        if plan.kind == "transactional":
            config |= {
                "transactional.id": plan.name,
                "transaction.timeout.ms": plan.transaction_timeout_ms,
                # librdkafka refuses transactions that time out before their records.
                "message.timeout.ms": plan.transaction_timeout_ms,
            }
        # An error that ends the producer is part of the history, not of the output.
        self.client = Producer(config, logger=silent_logger(process))

    def initialize(self) -> None:
        """Replace the predecessor of a transactional producer. Raises KafkaException."""
        if self._plan.kind == "transactional":
            _repeated(self.client.init_transactions)

    def send(self, topic: str, partition: int, key: str, copy_of: str | None = None) -> None:
        """Send a record with a new value. Raises Abandoned."""
        self._serial += 1
        value = f"{self._process}-{self._serial}"
        fields = {
            "topic": topic,
            "partition": partition,
            "value": value,
            "key": key,
            "acks": self._plan.acks,
            "idempotent": self._plan.kind != "plain",
            "txn": self._txn,
            "copy_of": copy_of,
        }
        self._record.add(Send, self._process, "invoke", **fields)
        try:
            self.client.produce(
                topic, value, key, partition=partition, on_delivery=lambda e, m: self._done(fields, e, m)
            )
        except (KafkaException, BufferError) as error:
            self._record.add(Send, self._process, "fail", **fields, error=str(error))
            raise Abandoned from error
        self.outstanding += 1

    def _done(self, fields: dict[str, Any], error: KafkaError | None, message: Message) -> None:
        self.outstanding -= 1
        if error is None:
            offset = message.offset()
            known = UNKNOWN if offset is None else max(offset, UNKNOWN)
            self._record.add(Send, self._process, "ok", **fields, offset=known)
            self._worker.progress += 1
            return
        self.failed += 1
        self._record.add(Send, self._process, "info", **fields, error=error.name())

    def flush(self) -> None:
        """Wait until all records are answered or have timed out. Raises Abandoned."""
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        while self.outstanding and time.monotonic() < deadline:
            self.client.flush(0.5)
        if self.outstanding:
            raise Abandoned

    def transaction(
        self, fill: Callable[[str], None], end: str, consumed: Callable[[], Consumed | None] | None = None
    ) -> bool:
        """Begin a transaction, fill it, and end it by `end`, or by an abort if a record failed. Returns
        whether it is committed.

        A commit includes what was consumed; if that is None, the transaction is aborted. Raises Abandoned, or
        the client's KafkaException.
        """
        self._serial += 1
        self._txn, self.failed = f"{self._process}/{self._serial}", 0
        try:
            self._step("begin", "invoke")
            self.client.begin_transaction()
            self._step("begin", "ok")
            fill(self._txn)
            self.flush()
            if self.failed:
                return self.end("abort")
            if consumed is None:
                return self.end(end)
            found = consumed()
            return self.end("abort") if found is None else self._commit_with(found)
        finally:
            self._txn = None

    def _commit_with(self, consumed: Consumed) -> bool:
        """Commit the transaction with offsets. Returns whether it is committed."""
        offsets = as_partitions(consumed.places)
        try:
            self._within_limit(
                lambda timeout: self.client.send_offsets_to_transaction(offsets, consumed.member, timeout)
            )
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            # For example, the member has been replaced.
            return self.end("abort")
        return self.end("commit", group=consumed.group, offsets=consumed.places)

    def _within_limit(self, step: Callable[[float], Any]) -> None:
        """Repeat a step, and leave it behind on its thread if it hangs.

        librdkafka 2.16 waits without end for a coordinator that was missing in Metadata for a moment. Raises
        Abandoned, KafkaException.
        """
        done: Future[None] = Future()

        def work() -> None:
            try:
                _repeated(step)
            except KafkaException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=work, name=f"{self._process} step", daemon=True).start()
        try:
            # Longer than the step may repeat, and short enough for the client's successor to make progress.
            done.result(STEP_TIMEOUT_S + 2 * REQUEST_TIMEOUT_S)
        except TimeoutError as error:
            _LEFT_BEHIND.append(self.client)
            raise Abandoned("a step hangs") from error

    def end(self, action: str, **fields: Any) -> bool:
        """Commit or abort the transaction; abort it if it can only be aborted. Returns whether it is
        committed. Raises KafkaException.
        """
        self._step(action, "invoke", **fields)
        try:
            _repeated(self.client.commit_transaction if action == "commit" else self.client.abort_transaction)
        except KafkaException as error:
            self._step(action, "info", error=str(error), **fields)
            if action == "abort" or not error.args[0].txn_requires_abort():
                raise
            return self.end("abort")
        self._step(action, "ok", **fields)
        return action == "commit"

    def _step(self, action: str, type_: str, **fields: Any) -> None:
        where = {"txn": self._txn, "transactional_id": self._plan.name, "action": action}
        self._record.add(Txn, self._process, type_, **where, **fields)

    def abandon(self, error: Exception) -> None:
        """Record why a successor replaces the producer."""
        self._record.add(Admin, self._process, "info", action="abandon", error=f"{error!r}")

    def close(self) -> None:
        """Give up what has no answer."""
        # A producer with a fatal error raises it again.
        if self.client in _LEFT_BEHIND:
            return
        with contextlib.suppress(KafkaException):
            self.client.purge()
            self.client.flush(1)


def _repeated(step: Callable[[float], Any]) -> None:
    """Repeat a step of a transaction while it fails for a passing reason. Raises KafkaException."""
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while True:
        try:
            step(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)
        else:
            return


class ProducerWorker(Worker):
    """Produces at a rate to all partitions, with a new session after an error that ends one."""

    def __init__(
        self, recorder: Recorder, bootstrap: str, plan: ProducerPlan, partitions: Mapping[str, int], seed: int
    ) -> None:
        super().__init__(plan.name, plan.name)
        self._recorder, self._bootstrap, self._plan = recorder, bootstrap, plan
        self._pace = Pace(plan, partitions, seed)

    def work(self) -> None:
        number = 0
        while not self.closing.is_set():
            number += 1
            session = Session(self, self._recorder, self._bootstrap, f"{self.name}.{number}", self._plan)
            try:
                session.initialize()
                self._use(session)
            except (Abandoned, KafkaException) as error:
                session.abandon(error)
            finally:
                session.close()

    def _use(self, session: Session) -> None:
        while not self.closing.is_set():
            if self._plan.kind == "transactional":
                count, end = self._pace.next_transaction()
                session.transaction(lambda _, count=count: self._send(session, count), end)  # type: ignore[misc]
            else:
                self._send(session, 1)
        session.flush()

    def _send(self, session: Session, count: int) -> None:
        """Send records at the planned rate."""
        for _ in range(count):
            self._pace.take_turn()
            while (left_s := self._pace.left_s) > 0 or session.outstanding >= IN_FLIGHT:
                session.client.poll(max(min(left_s, PAUSE_S), 0.001))
            session.send(*self._pace.next_record())
        session.client.poll(0)

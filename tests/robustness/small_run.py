"""A short run on one broker without a random choice: every kind of client, lost replies, a killed broker.

It finds planted defects in seconds. Errors of clients are part of the history, not of the run.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from korvet.offsets.packing import offset_after, offset_of
from robustness.clients import QUIET, Committer, Reader, Recorder, Sender
from robustness.history import (
    HISTORY,
    UNKNOWN,
    Admin,
    CatchUp,
    Fault,
    NativeSend,
    Place,
    ReadAll,
    ReadCommit,
    ReadNativeGroup,
    Run,
    Topic,
    Writer,
    addressed,
)
from tests.support.admin import create_topic
from tests.support.polling import DeadlineMissed, until
from tests.support.proxy import CuttingProxy
from tests.support.servers import BROKER, KorvetServer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from robustness.history import Isolation

TOPIC: Final = "t"
PARTITIONS: Final = (0, 1)
ROUNDS: Final = 4
# Entries that a Redis client appends, and records that a producer sends for each of them.
RACES: Final = 100
RECORDS_OF_RACE: Final = 40
# Less than append.lead.max.ms, and more than the race takes.
AHEAD_MS: Final = 900
# Bytes of the broker's responses after which a new connection is cut: during the handshake, or during the
# answers to the records.
REPLY_BYTES: Final = (900, 1_000, 1_100, 1_200, 1_400, 1_600)
RECORDS_AT_ONCE: Final = 20
END_TIMEOUT_S: Final = 2.0
CATCH_UP_TIMEOUT_S: Final = 3.0
# A commit waits this long for a store that is stopped. The broker's lease must not expire meanwhile.
STOPPED_S: Final = 1.0
SERVER_OPTIONS: Final = (
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "group.initial.rebalance.delay.ms=0",
)


# Parts of a run, in their order.
STAGES: Final = ("lose_replies", "rewind", "share_a_group", "fence", "race", "delete_records", "kill")


def small_run(folder: Path, stages: Collection[str] = STAGES, program: Sequence[str] = BROKER) -> Path:
    """Make a run of these stages with a broker of this program. Returns the path of its history."""
    proxy = CuttingProxy()
    options = [part for option in SERVER_OPTIONS for part in ("--set", option)]
    server = KorvetServer(*options, advertise=proxy.address, program=program)
    proxy.target_port = server.port
    path = folder / HISTORY
    try:
        server.start()
        with Writer(path) as writer:
            SmallRun(server, proxy, Recorder(writer)).run(stages)
    finally:
        proxy.close()
        server.discard()
    return path


class SmallRun:
    """The clients and steps of a run, on a server that advertises the proxy's address."""

    def __init__(self, server: KorvetServer, proxy: CuttingProxy, recorder: Recorder) -> None:
        self._server = server
        self._proxy = proxy
        self._record = recorder
        self._natives = 0
        address = proxy.address
        self._admin = AdminClient({"bootstrap.servers": address, **QUIET})
        recorder.add(
            Run,
            "runner",
            "info",
            topology="alone",
            topics=(Topic(name=TOPIC, partitions=2),),
            groups=("group",),
        )
        create_topic(address, TOPIC, len(PARTITIONS))
        self._one, self._other = (Sender(recorder, address, name) for name in ("one", "other"))
        self._transactional = Sender(recorder, address, "transactional", "transactions")
        self._member = Reader(recorder, address, "member", "read_committed", "group")
        self._observer = Reader(recorder, address, "observer", "read_uncommitted")
        self._committers = {name: Committer(recorder, address, name) for name in ("rewinder", "redis")}

    def run(self, stages: Collection[str]) -> None:
        """Take the steps of these stages, then read everything."""
        self._member.subscribe(TOPIC)
        self._observer.assign(TOPIC, PARTITIONS)
        for number in range(ROUNDS):
            self._round(number)
        for stage in STAGES:
            if stage in stages:
                getattr(self, stage)()
        self._finish()

    def _round(self, number: int) -> None:
        """Each producer sends; a transaction is read before and after its end."""
        for sender in (self._one, self._other):
            for partition in PARTITIONS:
                sender.send(TOPIC, partition)
            sender.flush()
        self._transactional.begin()
        for partition in PARTITIONS:
            self._transactional.send(TOPIC, partition)
        self._transactional.flush()
        self._member.poll()
        self._observer.poll()
        places = self._member.places()
        self._transactional.end("commit" if number % 3 else "abort", "txn-group", places)
        self._one.send(TOPIC, 0)
        self._one.flush()
        self._member.poll()
        self._observer.poll()
        if number % 2:
            self._member.commit()
        self._fetch("txn-group")

    def lose_replies(self) -> None:
        """Cut new connections during the answers, so that the producer sends records again."""
        for size in REPLY_BYTES:
            self._fault("cut_replies", "clients", "begin")
            self._proxy.cut_after(from_server_bytes=size)
            self._proxy.cut()
            for number in range(RECORDS_AT_ONCE):
                self._one.send(TOPIC, number % 2)
            before = self._proxy.cuts
            until(lambda before=before: self._one.waits(0.1) and self._proxy.cuts > before, 10, "cuts")  # type: ignore[misc]
            self._proxy.cut_after()
            self._proxy.cut()
            self._fault("cut_replies", "clients", "end")
            self._one.flush()

    def rewind(self) -> None:
        """A commit that goes back, as an administrator resets a group."""
        first, last = self._bounds(0)
        for offset in (first, last, first + 1):
            self._committers["rewinder"].commit([Place(TOPIC, 0, offset)])
        self._fetch("rewinder")

    def share_a_group(self) -> None:
        """A Redis consumer has entries pending when the group of its name commits."""
        first, last = self._bounds(0)
        self._committers["redis"].commit([Place(TOPIC, 0, first)])
        streams: dict[Any, Any] = {_stream(0): ">"}
        self._server.redis.xreadgroup("redis", "native", streams, count=3)
        self._committers["redis"].commit([Place(TOPIC, 0, last)])

    def fence(self) -> None:
        """A producer goes on after another one has taken over its transactional ID."""
        zombie = Sender(self._record, self._proxy.address, "zombie", "taken over")
        zombie.begin()
        zombie.send(TOPIC, 0)
        zombie.flush()
        heir = Sender(self._record, self._proxy.address, "heir", "taken over")
        heir.begin()
        heir.send(TOPIC, 0)
        heir.flush()
        zombie.end("commit")
        heir.end("abort")

    def race(self) -> None:
        """A Redis client and a producer append to one partition at the same time.

        The first entry is ahead of the clock, so that each further one has the ID after that of the newest
        record.
        """
        sender = Sender(self._record, self._proxy.address, "plain", plain=True)
        seconds, microseconds = self._server.redis.time()
        self._native_send(f"{seconds * 1000 + microseconds // 1000 + AHEAD_MS}-0")
        for _ in range(RACES):
            for _ in range(RECORDS_OF_RACE):
                sender.send(TOPIC, 0)
            sender.waits(0)
            self._native_send("*")
        sender.flush()

    def _native_send(self, entry_id: str) -> None:
        self._natives += 1
        where: dict[str, Any] = {"topic": TOPIC, "partition": 0, "value": f"native-{self._natives}"}
        self._record.add(NativeSend, "native", "invoke", **where)
        fields: dict[Any, Any] = {"key": "native", "value": where["value"]}
        added = self._server.redis.xadd(_stream(0), fields, id=entry_id).decode()
        self._record.add(NativeSend, "native", "ok", **where, entry_id=added)

    def delete_records(self) -> None:
        """Delete the older half of a partition, up to the offset of a record."""
        log = self._server.redis.xrange(_stream(1))
        offset = offset_of(log[len(log) // 2][0])
        self._record.add(
            Admin, "admin", "invoke", action="delete_records", topic=TOPIC, partition=1, offset=offset
        )
        result = self._admin.delete_records([TopicPartition(TOPIC, 1, offset)])
        answer = next(iter(result.values())).result()
        start = answer.low_watermark
        self._record.add(
            Admin, "admin", "ok", action="delete_records", topic=TOPIC, partition=1, offset=start
        )

    def kill(self) -> None:
        """Stop the store, let a group commit, and kill store and broker before the store goes on."""
        pid = self._server.store_pid()
        self._fault("kill", "broker and store", "begin")
        os.kill(pid, signal.SIGSTOP)
        rewinder = self._committers["rewinder"]
        rewinder.commit([Place(TOPIC, 0, rewinder.last + 1)], STOPPED_S)
        self._server.process.kill()
        os.kill(pid, signal.SIGKILL)
        self._server.restart()
        self._fault("kill", "broker and store", "end")
        self._fetch("rewinder")
        for number in range(ROUNDS):
            self._round(number)

    def _finish(self) -> None:
        """Read all partitions and committed offsets."""
        # An administrator's client keeps the leader epochs that it knows.
        self._admin = AdminClient({"bootstrap.servers": self._proxy.address, **QUIET})
        self._catch_up()
        for partition in PARTITIONS:
            self._read_all(partition, "read_uncommitted")
            self._read_all(partition, "read_committed")
            entries = self._server.redis.xrange(_stream(partition))
            values = (
                (at.decode(), fields[b"value"].decode()) for at, fields in entries if b"ctl" not in fields
            )
            records = tuple(addressed(values))
            where = {"topic": TOPIC, "partition": partition, "reader": "native", "records": records}
            self._record.add(ReadAll, "native", "ok", **where, complete=True)
        for group in ("group", "txn-group", "rewinder", "redis"):
            self._fetch(group)
        for group in ("group", "rewinder", "redis"):
            self._read_redis_group(group, 0)
        for client in (self._member, self._observer):
            client.close()

    def _catch_up(self) -> None:
        """The member reads to the last records, which are sent now."""
        last = set()
        for partition in PARTITIONS:
            self._one.send(TOPIC, partition)
            last.add(self._one.last)
        self._one.flush()

        def has_caught_up() -> bool:
            self._member.poll()
            return last <= self._member.values

        self._record.add(CatchUp, "runner", "invoke", group="group")
        try:
            until(has_caught_up, CATCH_UP_TIMEOUT_S, "the member has read the last records")
        except DeadlineMissed as error:
            self._record.add(CatchUp, "runner", "info", group="group", error=str(error))
        else:
            self._record.add(CatchUp, "runner", "ok", group="group")

    def _read_all(self, partition: int, isolation: Isolation) -> None:
        """Read a partition until its end, which is also the last stable offset if all transactions ended."""
        where = {"topic": TOPIC, "partition": partition, "isolation": isolation}
        self._record.add(ReadAll, "final", "invoke", **where)
        try:
            until(lambda: self._is_settled(partition), END_TIMEOUT_S, "all transactions have ended")
        except DeadlineMissed:
            return
        reader = Reader(self._record, self._proxy.address, "final", isolation)
        records, is_complete = reader.read_to_end(TOPIC, partition)
        self._record.add(ReadAll, "final", "ok", **where, records=records, complete=is_complete)

    def _is_settled(self, partition: int) -> bool:
        """Whether the last stable offset is the log's end. A client with an old leader epoch asks again."""
        latest = {TopicPartition(TOPIC, partition): OffsetSpec.latest()}
        try:
            ends = {
                answer.result().offset
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
                for answer in self._admin.list_offsets(latest, isolation_level=level).values()
            }
        except KafkaException:
            return False
        return len(ends) == 1

    def _bounds(self, partition: int) -> tuple[int, int]:
        """Returns the offsets of the first and the last entry."""
        log = self._server.redis.xrange(_stream(partition))
        return offset_of(log[0][0]), offset_of(log[-1][0])

    def _fetch(self, group: str) -> None:
        """Fetch the committed offsets of a group."""
        self._record.add(ReadCommit, "admin", "invoke", group=group)
        asked = [TopicPartition(TOPIC, partition) for partition in PARTITIONS]
        request = [ConsumerGroupTopicPartitions(group, asked)]
        try:
            result = self._admin.list_consumer_group_offsets(request, require_stable=True, request_timeout=5)
            found = result[group].result().topic_partitions
        except KafkaException as error:
            self._record.add(ReadCommit, "admin", "info", group=group, error=str(error))
            return
        offsets = {each.partition: max(each.offset, UNKNOWN) for each in found}
        places = tuple(Place(TOPIC, partition, offsets[partition]) for partition in PARTITIONS)
        self._record.add(ReadCommit, "admin", "ok", group=group, offsets=places)

    def _read_redis_group(self, group: str, partition: int) -> None:
        name = _stream(partition)
        found = {each["name"].decode(): each for each in self._server.redis.xinfo_groups(name)}
        if group not in found:
            return
        pending = tuple(
            offset_of(each["message_id"])
            for each in self._server.redis.xpending_range(name, group, "-", "+", 1_000)
        )
        after = offset_after(found[group]["last-delivered-id"])
        self._record.add(
            ReadNativeGroup,
            "admin",
            "ok",
            group=group,
            topic=TOPIC,
            partition=partition,
            offset=min((after, *pending)),
            pending=pending,
        )

    def _fault(self, kind: str, target: str, phase: str) -> None:
        self._record.add(Fault, "runner", "info", kind=kind, target=target, phase=phase)


def _stream(partition: int) -> str:
    return f"korvet:{TOPIC}:{partition}"

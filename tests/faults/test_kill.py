"""kill -9 of korvet, its embedded server, both, under load: nothing acknowledged is lost, groups resume."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.api.asking import connect
from tests.api.batches import batch
from tests.api.test_produce import put
from tests.embedded.folders import is_plain
from tests.support.admin import create_topic
from tests.support.confluent import Read, consumer, producer, read_all, send
from tests.support.load import LoadConsumer, LoadProducer
from tests.support.module import choice, module_built
from tests.support.polling import until
from tests.support.processes import alive
from tests.support.records import NOW_MS, Record
from tests.support.servers import KorvetServer
from tests.support.wire import ConnectionClosed, RawConnection, decode_response, header

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "load"
GROUP = "load-group"
PARTITIONS = 2
HEARTBEAT = 12
# Clients that ask for the coordinator again get these while it is being loaded.
_NOT_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)

Kill = Callable[[KorvetServer], None]


def kill_korvet(server: KorvetServer) -> None:
    """The embedded server must end with it, whatever it was doing."""
    store = server.store_pid()
    server.kill()
    until(lambda: not alive(store), 15, "the embedded server ended with its owner")
    server.restart()


def kill_store(server: KorvetServer) -> None:
    """korvet restarts it, or ends and is restarted by its supervisor."""
    before = server.store_pid()
    server.kill_store()
    server.drop_redis()

    def back() -> bool:
        if not server.process.running:
            server.restart()
        try:
            return server.store_pid() != before
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False

    until(back, 30, "a new embedded server answers")


def kill_both(server: KorvetServer) -> None:
    server.kill_both()
    server.restart()


KILLS = {"korvet": kill_korvet, "store": kill_store, "both": kill_both}


class Load:
    """Two producers (one idempotent) and two group members on a server that is being killed."""

    def __init__(self, server: KorvetServer, layout: str = "record") -> None:
        self.server = server
        self.layout = layout
        create_topic(server.bootstrap, TOPIC, PARTITIONS, {"storage.layout": layout})
        self.plain = LoadProducer(server.bootstrap, TOPIC, "plain", idempotent=False, partition=0)
        self.once = LoadProducer(server.bootstrap, TOPIC, "once", idempotent=True, partition=1)
        self.members = [LoadConsumer(server.bootstrap, TOPIC, GROUP) for _ in range(PARTITIONS)]
        self.progress("the load runs")
        until(
            lambda: all(len(m.partitions) == 1 for m in self.members), 30, "the members share the partitions"
        )

    @property
    def uses_module(self) -> bool:
        return self.layout == "record" and module_built() and choice() != "none"

    def file_holds_module_command(self) -> bool:
        return not is_plain(self.server.data_dir)

    def progress(self, what: str, count: int = 1_500) -> None:
        """Wait until every client has got `count` records further, by the module's command if it is used."""
        marks = [len(self.plain.acknowledged) + count, len(self.once.acknowledged) + count]
        seen = [len(member.seen.values) for member in self.members]

        def moved() -> bool:
            done = len(self.plain.acknowledged) >= marks[0] and len(self.once.acknowledged) >= marks[1]
            reading = sum(len(member.seen.values) for member in self.members) >= sum(seen) + count
            return done and reading

        until(moved, 60, f"{what}; {self.state()}")
        if self.uses_module:
            # Checked while records arrive: a rewrite of the file replaces the command by XADDs.
            until(self.file_holds_module_command, 30, f"the file holds KORVET.ADD; {self.state()}")

    def state(self) -> str:
        return (
            f"acknowledged {len(self.plain.acknowledged)}/{len(self.once.acknowledged)}, "
            f"read {[len(member.seen.values) for member in self.members]}, log:\n{self.server.tail(1500)}"
        )

    def finish(self) -> None:
        self.plain.finish()
        self.once.finish()
        logs = [read_all(self.server.bootstrap, TOPIC, partition) for partition in range(PARTITIONS)]
        try:
            self.check_log(self.plain, logs[0], once=False)
            self.check_log(self.once, logs[1], once=True)
            self.check_group(logs)
        finally:
            for member in self.members:
                member.close()
        self.check_commits()
        if self.layout == "record":
            self.check_streams()
        assert self.uses_module or not self.file_holds_module_command()

    def check_log(self, load: LoadProducer, log: list[Read], once: bool) -> None:
        at = {read.offset: read.record.value for read in log}
        lost = [n for n, offset in load.acknowledged.items() if at.get(offset) != load.value(n)]
        assert lost == [], f"{load.name}: {len(lost)} of {len(load.acknowledged)} acknowledged are not there"
        assert not load.failed, dict(list(load.failed.items())[:3])
        numbers = [int((read.record.value or b"").rpartition(b"-")[2]) for read in log]
        if once:
            assert numbers == list(range(load.sent)), "each record once, in order"
        else:
            assert set(numbers) == set(range(load.sent))

    def check_streams(self) -> None:
        """Each stream is, byte for byte, what an XADD per entry makes, also after a replay."""
        redis = self.server.redis
        for partition in range(PARTITIONS):
            redis.copy(f"korvet:{TOPIC}:{partition}", "found")
            redis.xgroup_destroy("found", GROUP)
            with redis.pipeline(transaction=False) as pipeline:
                for entry_id, fields in self.server.raw("XRANGE", "found", "-", "+"):
                    pipeline.execute_command("XADD", "expected", entry_id, *fields)
                pipeline.execute()
            assert redis.dump("found") == redis.dump("expected")
            redis.delete("found", "expected")

    def check_group(self, logs: list[list[Read]]) -> None:
        """The members read everything up to the end, and nothing that is not in the log."""
        expected = {(partition, read.offset) for partition, log in enumerate(logs) for read in log}

        def seen() -> set[tuple[int, int]]:
            return {(partition, offset) for m in self.members for partition, offset, _ in m.seen.values}

        until(lambda: seen() >= expected, 60, f"the group reads to the end; {self.state()}")
        assert seen() == expected, "records were read that are not in the log"

    def check_commits(self) -> None:
        client = consumer(self.server.bootstrap, GROUP)
        asked = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        found = {answer.partition: answer.offset for answer in client.committed(asked, timeout=20)}
        client.close()
        promised: dict[int, int] = {}
        for member in self.members:
            for partition, offset in member.seen.committed.items():
                promised[partition] = max(promised.get(partition, -1), offset)
        assert set(promised) == set(range(PARTITIONS))
        assert all(found[partition] >= offset for partition, offset in promised.items()), (found, promised)


@pytest.mark.parametrize(("what", "layout"), [*((what, "record") for what in KILLS), ("both", "batch")])
def test_kill_under_load(own_korvet, what, layout):
    load = Load(own_korvet(), layout)
    KILLS[what](load.server)
    load.progress("the load goes on after the kill")
    load.finish()


@pytest.mark.long
@pytest.mark.parametrize("layout", ["record", "batch"])
def test_many_kills_under_load(own_korvet, layout):
    load = Load(own_korvet(), layout)
    for _ in range(5):
        for kill in KILLS.values():
            kill(load.server)
            load.progress("the load goes on after the kill")
    load.finish()


def heartbeat_error(server: KorvetServer, generation: int, member_id: str) -> int:
    """The coordinator's answer to a heartbeat of this member in this generation."""
    body = _string(GROUP) + struct.pack(">i", generation) + _string(member_id)
    with RawConnection(server.host, server.port) as connection:
        response = decode_response(HEARTBEAT, 0, connection.ask(header(HEARTBEAT, 0, 1) + body))
    return int(response.message.error_code)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def current_generation(server: KorvetServer, member_id: str) -> int | None:
    """The current generation, found by heartbeats: the coordinator accepts only that one."""
    accepted = [n for n in range(1, 20) if heartbeat_error(server, n, member_id) == 0]
    return accepted[0] if accepted else None


@pytest.mark.parametrize("what", KILLS)
def test_members_stay_in_their_generation(own_korvet, what):
    """A member that survives a restart keeps its id, its generation and its partitions: no rejoin."""
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, PARTITIONS)
    members = [LoadConsumer(server.bootstrap, TOPIC, GROUP) for _ in range(PARTITIONS)]
    until(lambda: all(len(member.partitions) == 1 for member in members), 30, "the members share")
    before = [(member.member_id, member.partitions) for member in members]

    def settled() -> int | None:
        return current_generation(server, members[0].member_id)

    generation = until(settled, 10, "the group is stable")
    KILLS[what](server)

    def answered() -> list[int]:
        # 14 (still loading), 15 and 16 are passing; anything else is the answer. The broker may notice
        # between two answers that its server was killed.
        errors = [heartbeat_error(server, generation, member.member_id) for member in members]
        return errors if not {14, 15, 16, -1} & {*errors} else []

    errors = until(answered, 20, "the coordinator is loaded")
    assert errors == [0, 0], "member ids and generation survived"
    records = [Record(None, b"%d" % number, (), NOW_MS) for number in range(10)]
    for partition in range(PARTITIONS):
        send(producer(server.bootstrap), TOPIC, partition, records)
    until(lambda: sum(len(member.seen.values) for member in members) == 20, 30, "the members read on")
    assert [(member.member_id, member.partitions) for member in members] == before
    assert heartbeat_error(server, generation, members[0].member_id) == 0
    for member in members:
        member.close()


def retried(call: Callable[[], Any]) -> Any:
    """What a call returns once the coordinator serves the group again, after a kill."""

    def answer() -> list[Any]:
        try:
            return [call()]
        except KafkaException as failure:
            if failure.args[0].code() not in _NOT_YET:
                raise
            return []

    return until(answer, 30, "the coordinator serves the group")[0]


@pytest.mark.short
def test_commits_survive_every_kill(own_korvet):
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1)
    asked = [TopicPartition(TOPIC, 0)]
    promised = 0
    for kill in KILLS.values():
        for _ in range(30):
            client = consumer(server.bootstrap, GROUP)
            for _ in range(5):
                promised += 1
                offsets = [TopicPartition(TOPIC, 0, promised)]
                retried(partial(client.commit, offsets=offsets, asynchronous=False))
            client.close()
        kill(server)
        client = consumer(server.bootstrap, GROUP)
        (stored,) = retried(partial(client.committed, asked, timeout=20))
        assert stored.offset == promised
        client.close()


def test_a_clean_stop_and_start_loses_nothing(own_korvet):
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1)
    records = [Record(b"k", b"%d" % number, (("h", None),), NOW_MS) for number in range(1_000)]
    offsets = send(producer(server.bootstrap), TOPIC, 0, records)
    store = server.store_pid()
    assert server.stop() == 0
    until(lambda: not alive(store), 10, "the embedded server ended too")
    server.restart()
    found = read_all(server.bootstrap, TOPIC)
    assert [(read.offset, read.record) for read in found] == list(zip(offsets, records, strict=True))
    (later,) = send(producer(server.bootstrap), TOPIC, 0, records[:1])
    assert later > offsets[-1]


def test_a_clean_stop_answers_what_is_in_progress(own_korvet):
    """Else a producer without sequence numbers would send such a record twice."""
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1)
    acknowledged = 0
    for _ in range(4):
        with connect(server) as asking:
            stopping = threading.Timer(0.2, server.process.terminate)
            stopping.start()
            with contextlib.suppress(ConnectionClosed, OSError):
                while True:
                    assert put(asking, TOPIC, batch([(b"k", b"v")])).error_code == 0
                    acknowledged += 1
            stopping.join()
        server.restart()
    assert len(read_all(server.bootstrap, TOPIC)) == acknowledged


def test_a_java_consumer_reads_on_when_its_fetch_session_is_gone(own_korvet, java, tmp_path):
    """Sessions end with the broker (KIP-227): the client begins a new one at its position."""
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 3)
    log = tmp_path / "consumer.log"
    reader = java.start(
        "console-consumer",
        *("--bootstrap-server", server.bootstrap, "--topic", TOPIC, "--from-beginning"),
        # A client that forgets its only broker may forget its partitions, and join again from the beginning.
        *("--command-property", "metadata.recovery.strategy=none"),
        log=log,
    )
    sent: list[str] = []

    def has_all() -> bool:
        return sorted(line for line in log.read_text().splitlines() if line.startswith("record-")) == sorted(
            sent
        )

    try:
        for kills in range(2):
            if kills:
                kill_korvet(server)
            for round_number in range(3):
                values = [f"record-{kills}-{round_number}-{index}" for index in range(3)]
                for index, value in enumerate(values):
                    send(producer(server.bootstrap), TOPIC, index, [Record(None, value.encode(), (), NOW_MS)])
                sent += values
                until(has_all, 90, f"the records of round {round_number}")
    finally:
        reader.kill()


def test_a_second_broker_on_the_same_folder_is_told_who_has_it(own_korvet):
    server = own_korvet()
    second = KorvetServer()
    second.data_dir.rmdir()
    second.data_dir = server.data_dir
    second.spawn()
    until(lambda: not second.process.running, 20, "the second broker gives up")
    assert second.process.exit_code not in (0, None)
    assert str(server.process.pid) in second.tail()
    second.log.unlink()
    assert server.process.running

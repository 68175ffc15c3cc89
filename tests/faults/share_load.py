"""Share consumers on threads: they take, accept, and record what was answered, through every fault."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaException, ShareConsumer

from korvet.cli.client import ClientError, Cluster
from korvet.cli.share_requests import offsets
from tests.api.asking import connect
from tests.support.confluent import read_all
from tests.support.load import QUICK, LoadProducer
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.servers import KorvetServer

GROUP: Final = "workers"
LOCK_MS: Final = 2000
SETTINGS: Final = (
    "group.share.min.record.lock.duration.ms=1000",
    f"group.share.record.lock.duration.ms={LOCK_MS}",
    # Faults may cost each record some deliveries.
    "group.share.delivery.count.limit=10",
    "group.share.min.heartbeat.interval.ms=500",
    "group.share.heartbeat.interval.ms=500",
)
"""Settings of brokers: locks end soon."""
RESET: Final = "share.auto.offset.reset"
OPTIONS: Final = tuple(option for setting in SETTINGS for option in ("--set", setting))


def share(server: KorvetServer, group: str = GROUP) -> None:
    """Let a share group begin with the first records."""
    first = {"name": RESET, "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": group, "configs": [first]}
    with connect(server) as ask:
        ask("IncrementalAlterConfigs", 1, resources=[resource])


class Place(NamedTuple):
    """A record."""

    topic: str
    partition: int
    offset: int


class ShareWorker:
    """A member that accepts all that it takes."""

    def __init__(self, bootstrap: str, topics: Sequence[str], group: str) -> None:
        self.taken: dict[Place, bytes | None] = {}
        """The values of all records that it got."""
        self.accepted: Counter[Place] = Counter()
        """How often an acknowledgement of the record has succeeded. Others may have succeeded unanswered."""
        self.errors: Counter[str] = Counter()
        names: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
            # A broker that hangs answers nothing and closes nothing.
            "socket.timeout.ms": 4000,
        }
        names |= {name.replace("_", "."): value for name, value in QUICK.items()}
        self._client = ShareConsumer(names)
        self._client.subscribe([*topics])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._accept(self._take())
            except KafkaException as error:
                self.errors[error.args[0].name()] += 1

    def _take(self) -> list[Place]:
        found = []
        for message in self._client.poll(0.1):
            error = message.error()
            if error is not None:
                self.errors[error.name()] += 1
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            found.append(Place(topic, partition, offset))
            self.taken[found[-1]] = message.value()
            self._client.acknowledge(message)
        return found

    def _accept(self, places: Sequence[Place]) -> None:
        if not places:
            return
        for where, error in self._client.commit_sync(10).items():
            if error is not None:
                self.errors[error.args[0].name()] += 1
                continue
            of_partition = (where.topic, where.partition)
            self.accepted.update(place for place in places if place[:2] == of_partition)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(30)
        self._client.close()


class ShareLoad:
    """Producers to some partitions, and members of a share group."""

    def __init__(
        self,
        server: KorvetServer,
        places: Sequence[tuple[str, int]],
        members: int = 2,
        *,
        lossless: bool = True,
        group: str = GROUP,
    ) -> None:
        """`places`: partitions. `lossless`: no record that was acknowledged may be lost."""
        self._server = server
        self._group = group
        # Members have to keep up with them.
        pace = {"socket_timeout_ms": 4000, "in_flight": 50, "pause_s": 0.005}
        self.senders = {
            (topic, partition): LoadProducer(
                server.bootstrap,
                topic,
                f"{topic}-{partition}",
                idempotent=lossless,
                partition=partition,
                **pace,
            )
            for topic, partition in places
        }
        topics = sorted({topic for topic, _ in places})
        self.workers = [ShareWorker(server.bootstrap, topics, group) for _ in range(members)]

    def gets_on(self, what: str, count: int = 200) -> None:
        """Wait until records that were sent after this call are accepted in each partition."""
        goals = {place: len(sender.acknowledged) + count for place, sender in self.senders.items()}

        def missing() -> dict[tuple[str, int], int]:
            return {place: goal for place, goal in goals.items() if not self._is_accepted(place, goal)}

        until(lambda: not missing(), 60, lambda: f"{what}: {missing()}; {self._errors()}")

    def _is_accepted(self, place: tuple[str, int], number: int) -> bool:
        """Whether one of a few records from this number on is accepted."""
        offsets = map(self.senders[place].acknowledged.get, range(number, number + 20))
        places = [Place(*place, offset) for offset in offsets if offset is not None]
        return any(each in worker.accepted for each in places for worker in self.workers)

    def finish(self) -> None:
        """Stop sending, and wait until the group has nothing left: members have got all that is stored."""
        for sender in self.senders.values():
            sender.finish()
        until(lambda: self._lag() == 0, 60, lambda: f"the lag is 0: {self._lag()}; {self._errors()}")
        for worker in self.workers:
            worker.close()
        taken = set().union(*(worker.taken for worker in self.workers))
        missing = [place for place in self._stored() if place not in taken]
        assert not missing, f"{len(missing)} records were taken by nobody, as {missing[:5]}; {self._errors()}"

    def check(self) -> None:
        """No record was accepted twice."""
        done = sum((worker.accepted for worker in self.workers), Counter[Place]())
        twice = {place: count for place, count in done.items() if count > 1}
        assert not twice, f"{twice}; {self._errors()}"

    def _lag(self) -> int | None:
        """Records that are not accepted; None while no coordinator tells."""
        try:
            with Cluster(self._server.bootstrap) as cluster:
                found = offsets(cluster, self._group)
            return sum(abs(found[place].lag) for place in self.senders)
        except (ClientError, KeyError):
            return None

    def _stored(self) -> Iterator[Place]:
        for topic, partition in self.senders:
            for read in read_all(self._server.bootstrap, topic, partition):
                yield Place(topic, partition, read.offset)

    def _errors(self) -> str:
        found = sum((worker.errors for worker in self.workers), Counter[str]())
        return f"errors {dict(found)}; korvet's log:\n{self._server.tail()}"

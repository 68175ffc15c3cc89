"""Clients that continue while the servers below a broker fail or change places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.support.admin import create_topic
from tests.support.confluent import read_all
from tests.support.load import LoadConsumer, LoadProducer
from tests.support.polling import until

if TYPE_CHECKING:
    from tests.support.servers import KorvetServer

TOPIC: Final = "load"
GROUP: Final = "load-group"
# All records are read at the end.
_FEW: Final[dict[str, Any]] = {"in_flight": 50}


class RedisLoad:
    """A producer for each of two partitions, and a member of a group."""

    def __init__(self, server: KorvetServer, *, lossless: bool = True) -> None:
        """`lossless`: nothing that was acknowledged may be lost, and one of the producers is idempotent.
        librdkafka's idempotent producer ends with a fatal error after a loss.
        """
        self.server = server
        self._lossless = lossless
        create_topic(server.bootstrap, TOPIC, 2)
        self.plain = LoadProducer(server.bootstrap, TOPIC, "plain", idempotent=False, partition=0, **_FEW)
        self.once = LoadProducer(server.bootstrap, TOPIC, "once", idempotent=lossless, partition=1, **_FEW)
        self.member = LoadConsumer(server.bootstrap, TOPIC, GROUP)
        self.gets_on()

    def gets_on(self) -> None:
        for producer in (self.plain, self.once):
            goal = len(producer.acknowledged) + 300
            until(
                lambda producer=producer, goal=goal: len(producer.acknowledged) >= goal,
                60,
                lambda producer=producer: f"{producer.name} gets on; korvet's log:\n{self.server.tail()}",
            )
        committed = dict(self.member.seen.committed)
        until(
            lambda: (
                all(
                    offset > committed.get(partition, -1)
                    for partition, offset in self.member.seen.committed.items()
                )
                and len(self.member.seen.committed) == 2
            ),
            60,
            lambda: (
                f"commits get on after {committed}: {self.member.seen.committed}, "
                f"{self.member.seen.commit_errors}, {self.member.errors}, assigned {self.member.partitions}; "
                f"korvet's log:\n{self.server.tail()}"
            ),
        )

    def finish(self) -> None:
        self.plain.finish()
        self.once.finish()
        failed = {str(error) for each in (self.plain, self.once) for error in each.failed.values()}
        assert not failed, f"{failed}; korvet's log:\n{self.server.tail(16000)}"

    def check(self) -> None:
        """Everything acknowledged is there, in order, and an idempotent producer's records are there once.
        What is not there was acknowledged and lost.
        """
        for producer in (self.plain, self.once):
            partition = 0 if producer is self.plain else 1
            log = read_all(self.server.bootstrap, TOPIC, partition)
            values = {read.offset: read.record.value for read in log}
            numbers = [int(value.rpartition(b"-")[2]) for value in values.values()]
            missing = [
                number
                for number, offset in producer.acknowledged.items()
                if values.get(offset) != producer.value(number)
            ]
            if self._lossless:
                assert missing == []
            if producer is self.once and self._lossless:
                assert numbers == sorted(set(numbers))
            assert set(range(producer.sent)) - set(numbers) <= set(missing)

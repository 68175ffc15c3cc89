"""Producers of one transactional id that begin, write, end, repeat themselves, fence each other and stall,
with restarts of the coordinator at any point, markers in any order, some of them late, and lost
acknowledgements.

The model tracks the responses to each producer and the records of each partition. In every interleaving, all
records of a transaction are committed, or none: all if its producer got the response of a commit, none if it
got the response of an abort or was fenced. A fenced producer has no effect. A decided transaction has ended
once its markers are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from korvet.transactions.transaction import LAST_CLIENT_EPOCH
from tests.unit.transactions.driver import TIMEOUT_MS, Driver

if TYPE_CHECKING:
    from korvet.transactions.messages import Markers

PARTITIONS = tuple((topic, partition) for topic in ("orders", "bills") for partition in range(2))
# Mostly the first one: producers that fence each other at once get nothing done.
INDEX = st.sampled_from((0, 0, 0, 1, 2))
PROTOCOLS = st.sampled_from((0, 2))
SOME_PARTITIONS = st.sets(st.sampled_from(PARTITIONS), min_size=1)
RARELY = st.sampled_from((False, False, False, True))
NONE = ErrorCode.none


class Log:
    """A partition: the checks of its leader, and its records."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}
        self.outcomes: dict[int, bool] = {}
        self.marked: list[Markers] = []
        self.decided: dict[int, int] = {}

    def write(self, producer_id: int, epoch: int, record: int) -> bool:
        if epoch < self.epochs.get(producer_id, 0):
            return False
        self.epochs[producer_id] = epoch
        self.open.setdefault(producer_id, []).append(record)
        return True

    def mark(self, markers: Markers) -> None:
        assert markers.producer_epoch >= self.epochs.get(markers.producer_id, 0), "a marker was overtaken"
        self.marked.append(markers)
        if markers.decided_ms <= self.decided.get(markers.producer_id, -1):
            return
        self.decided[markers.producer_id] = markers.decided_ms
        self.epochs[markers.producer_id] = markers.producer_epoch
        for record in self.open.pop(markers.producer_id, ()):
            self.outcomes[record] = markers.committed

    def mark_late(self, index: int) -> None:
        markers = self.marked[index % len(self.marked)]
        if markers.producer_epoch >= self.epochs[markers.producer_id]:
            self.mark(markers)


class Producer:
    """A producer in its own view, in one transaction after the other."""

    def __init__(self, protocol: int) -> None:
        self.protocol = protocol
        self.producer_id = self.epoch = -1
        self.records: list[int] = []
        self.added: set[tuple[str, int]] = set()
        self.asked: bool | None = None  # the outcome that it has requested, without a reply yet

    def next(self) -> None:
        self.records, self.added, self.asked = [], set(), None


class TransactionMachine(RuleBasedStateMachine):
    """Producers are picked by index, modulo their number."""

    @initialize(exhausted=st.booleans(), protocols=st.tuples(PROTOCOLS, PROTOCOLS, PROTOCOLS))
    def start(self, exhausted: bool, protocols: tuple[int, ...]) -> None:
        self.driver = Driver()
        self.logs = {partition: Log() for partition in PARTITIONS}
        self.producers = [Producer(protocol) for protocol in protocols]
        self.owner: Producer | None = None
        self.expected: dict[int, bool] = {}  # whether responses committed these records
        self.transactions: list[list[int]] = []
        self.written = 0
        if exhausted:
            self.exhaust()
        self.init(0, goes_on=False, is_lost=False)

    def exhaust(self) -> None:
        """Let the id's epochs run out soon."""
        self.driver.init()
        key, value = self.driver.log[-1]
        assert value is not None
        fields = {name: getattr(value, name) for name in value.__slots__} | {
            "producer_epoch": LAST_CLIENT_EPOCH - 3
        }
        self.driver.log[-1] = key, type(value)(**fields)
        self.driver = self.driver.restarted()

    # Actions of producers

    @rule(index=INDEX, goes_on=st.booleans(), is_lost=RARELY)
    def init(self, index: int, goes_on: bool, is_lost: bool) -> None:
        producer = self.pick(index)
        if producer.asked is not None:
            return  # it wants to know first
        known = (producer.producer_id, producer.epoch) if goes_on else (-1, -1)
        reply = self.driver.init("t", *known)
        if reply.error is NONE:
            assert not goes_on or known == (-1, -1) or self.owner is producer, "a fenced producer continued"
            assert 0 <= reply.producer_epoch <= LAST_CLIENT_EPOCH
            self.owner = producer
            self.told(producer.records, committed=False)
            if is_lost:
                return
            producer.next()
            producer.producer_id, producer.epoch = reply.producer_id, reply.producer_epoch

    @rule(index=INDEX, partitions=SOME_PARTITIONS, is_verified_late=RARELY)
    def write(self, index: int, partitions: set[tuple[str, int]], is_verified_late: bool) -> None:
        producer = self.pick(index)
        if producer.epoch < 0:
            return
        name = (producer.producer_id, producer.epoch)
        if producer.asked is None and not is_verified_late:
            added = self.driver.add(*name, *sorted(partitions), protocol=producer.protocol)
            if added.error is NONE:
                assert self.owner is producer, "a fenced producer added partitions"
                producer.added |= partitions
        for partition in sorted(partitions):
            verified = self.driver.add(*name, partition, verify_only=True)
            if verified.error is NONE and not verified.absent:
                assert partition in producer.added
                self.written += 1
                assert self.logs[partition].write(*name, self.written)
                if not producer.records:
                    self.transactions.append(producer.records)
                producer.records.append(self.written)

    @rule(index=INDEX, committed=st.booleans(), is_lost=RARELY)
    def end(self, index: int, committed: bool, is_lost: bool) -> None:
        producer = self.pick(index)
        if producer.epoch < 0:
            return
        if producer.asked is not None:
            committed = producer.asked
        reply = self.driver.end(
            producer.producer_id, producer.epoch, committed=committed, protocol=producer.protocol
        )
        if reply.error is NONE:
            assert self.owner is producer, "a fenced producer ended a transaction"
            self.told(producer.records, committed=committed)
            if is_lost:
                producer.asked = committed
                return
            producer.next()
            if producer.protocol:
                producer.producer_id, producer.epoch = reply.producer_id, reply.producer_epoch
                assert producer.epoch <= LAST_CLIENT_EPOCH
        elif reply.error not in {ErrorCode.concurrent_transactions, ErrorCode.invalid_txn_state}:
            # Fenced: without an earlier response of a commit, there is none.
            if producer.asked is None:
                self.told(producer.records, committed=False)
            producer.next()
            producer.producer_id = producer.epoch = -1
        elif reply.error is ErrorCode.invalid_txn_state and producer.asked is None:
            self.told(producer.records, committed=False)
            producer.next()

    @rule(index=INDEX, partitions=SOME_PARTITIONS, committed=st.booleans(), marks=INDEX)
    def transact(self, index: int, partitions: set[tuple[str, int]], committed: bool, marks: int) -> None:
        """A whole transaction, so that there are many."""
        if self.pick(index).epoch < 0:
            self.init(index, goes_on=False, is_lost=False)
        self.write(index, partitions, is_verified_late=False)
        self.end(index, committed, is_lost=False)
        for _ in range(marks):
            if self.driver.markers:
                self.mark(0, set(PARTITIONS[:marks]), is_acknowledged=True)

    # Other events

    @precondition(lambda self: self.driver.markers)
    @rule(index=INDEX, partitions=SOME_PARTITIONS, is_acknowledged=st.booleans())
    def mark(self, index: int, partitions: set[tuple[str, int]], is_acknowledged: bool) -> None:
        markers = self.driver.markers[index % len(self.driver.markers)]
        these = markers.partitions & partitions
        for partition in these:
            self.logs[partition].mark(markers)
        if not is_acknowledged or not these:
            return
        self.driver.markers.remove(markers)
        if left := markers.partitions - these:
            self.driver.markers.append(msgspec.structs.replace(markers, partitions=left))
        self.driver.written(msgspec.structs.replace(markers, partitions=these))

    @rule(partition=st.sampled_from(PARTITIONS), index=st.integers(0, 20))
    def mark_late(self, partition: tuple[str, int], index: int) -> None:
        """A marker arrives once more, from a connection that was given up."""
        if self.logs[partition].marked:
            self.logs[partition].mark_late(index)

    @rule(by_ms=st.sampled_from((1, 1, 1, TIMEOUT_MS // 3, TIMEOUT_MS)))
    def wait(self, by_ms: int) -> None:
        self.driver.advance(by_ms)

    @rule()
    def restart(self) -> None:
        self.driver = self.driver.restarted()

    # Invariants

    @invariant()
    def nothing_is_told_twice_and_differently(self) -> None:
        if not hasattr(self, "logs"):
            return
        for log in self.logs.values():
            for record, committed in log.outcomes.items():
                assert self.expected.get(record, committed) == committed

    def teardown(self) -> None:
        if not hasattr(self, "logs"):
            return
        self.driver = self.driver.restarted()
        self.driver.advance(TIMEOUT_MS + 1)
        while self.driver.markers:
            for markers in self.driver.write_markers():
                for partition in markers.partitions:
                    self.logs[partition].mark(markers)
        self.nothing_is_told_twice_and_differently()
        outcomes: dict[int, bool] = {}
        for log in self.logs.values():
            assert not log.open, "a transaction is left open"
            outcomes |= log.outcomes
        assert len(outcomes) == self.written
        for records in self.transactions:
            assert len({outcomes[record] for record in records}) == 1, "half a transaction is committed"

    def told(self, records: list[int], *, committed: bool) -> None:
        for record in records:
            assert self.expected.setdefault(record, committed) == committed

    def pick(self, index: int) -> Producer:
        return self.producers[index % len(self.producers)]


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(stateful_step_count=40)

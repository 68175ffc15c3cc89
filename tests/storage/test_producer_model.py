"""An idempotent producer with several batches in flight, through failovers that lose what it sent.

The producer follows librdkafka: it sends at most five batches before they are answered, waits for the
answers to all of them if one has failed, and sends those that failed again, in order. An acknowledged batch
acknowledges all before it. The functions are called directly: batches alone or several together, and any
reply may be lost.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from kio.schema.errors import ErrorCode

from korvet.api.producing.refused_batches import SENT_AGAIN, RefusedBatches
from korvet.log.values import ProducerSequence
from korvet.records.batch import BatchHeader
from tests.storage.conftest import Bench
from tests.support.append_calls import call_append, verdicts
from tests.support.machines import run_machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.redis_server import Server

pytestmark = pytest.mark.each_server

PRODUCER = 7
IN_FLIGHT = 5
_serial = itertools.count()
_ERRORS = {
    "SEQUENCEGAP": ErrorCode.not_leader_or_follower,
    "OUTOFORDERSEQUENCE": ErrorCode.out_of_order_sequence_number,
}
_ZEROES = dict.fromkeys(BatchHeader.__struct_fields__, 0)


class Reply(Enum):
    """What becomes of the reply to a batch that was appended: its answer."""

    ARRIVES = ErrorCode.none
    IS_LOST = ErrorCode.request_timed_out
    REPLICAS_ARE_MISSING = ErrorCode.not_enough_replicas_after_append


@dataclass(order=True)
class Batch:
    """A batch of the producer, whose records are its sequences."""

    sequence: int
    count: int
    answer: ErrorCode | None = field(default=None, compare=False)
    """None while the broker has it."""

    @property
    def header(self) -> BatchHeader:
        stamp = {"producer_id": PRODUCER, "base_sequence": self.sequence, "record_count": self.count}
        return BatchHeader(**{**_ZEROES, **stamp})  # type: ignore[arg-type]


class ProducerMachine(RuleBasedStateMachine):
    """No batch is appended twice or out of order, and the producer meets no error that it cannot retry."""

    server: Server
    remembers = True
    """Whether the broker refuses batches after a refused one."""
    changes = True
    """Whether there are failovers and changes of leaders."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench(self.server, f"producer{next(_serial)}")
        self.keys = self.bench.log(offset_assignment="dense").state.keys[:3]
        self.refused = RefusedBatches()
        self.next_sequence = 0
        self.to_send: list[Batch] = []
        self.in_flight: list[Batch] = []
        self.draining = False
        self.replicate()
        self.cuts: list[str] = []

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.close()

    # The producer.

    @precondition(lambda self: not self.draining and len(self.in_flight) < IN_FLIGHT)
    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=IN_FLIGHT))
    def send(self, counts: list[int]) -> None:
        for count in counts[: IN_FLIGHT - len(self.in_flight)]:
            if not self.to_send:
                self.to_send.append(Batch(self.next_sequence, count))
                self.next_sequence += count
            self.in_flight.append(self.to_send.pop(0))

    def take_answers(self) -> None:
        while self.in_flight and self.in_flight[0].answer is not None:
            batch = self.in_flight.pop(0)
            answer, batch.answer = batch.answer, None
            assert answer is not ErrorCode.out_of_order_sequence_number
            if answer is ErrorCode.none:
                self.to_send = [each for each in self.to_send if each > batch]
            else:
                self.to_send = sorted([*self.to_send, batch])
                self.draining = True
        if not self.in_flight:
            self.draining = False

    # The broker.

    @property
    def waiting(self) -> list[Batch]:
        return [batch for batch in self.in_flight if batch.answer is None]

    @precondition(lambda self: self.waiting)
    @rule(number=st.integers(1, IN_FLIGHT), together=st.booleans(), reply=st.sampled_from(Reply))
    def append(self, number: int, together: bool, reply: Reply) -> None:
        """The broker appends batches, one by one or together."""
        batches = self.waiting[:number]
        if together and self.refused.error_before("t-0", batches[0].header) is None:
            for batch in batches:
                self.refused.begins("t-0", batch.header)
            for batch, error in zip(batches, self.call(batches), strict=True):
                self.answer(batch, error, reply)
        else:
            for batch in batches:
                self.answer(batch, self.append_alone(batch), reply)
        self.take_answers()

    @precondition(lambda self: self.waiting)
    @rule()
    def refuse(self) -> None:
        """The broker refuses a batch, for a reason that has passed when it takes the next one."""
        self.answer(self.waiting[0], ErrorCode.not_enough_replicas, Reply.ARRIVES)
        self.take_answers()

    def append_alone(self, batch: Batch) -> ErrorCode:
        refused = self.refused.error_before("t-0", batch.header)
        if refused is not None and self.remembers:
            return refused
        self.refused.begins("t-0", batch.header)
        (error,) = self.call([batch])
        return error

    def call(self, batches: Sequence[Batch]) -> list[ErrorCode]:
        """Call korvet_append. Returns what it answers to each batch."""
        sent = [
            (
                ProducerSequence(PRODUCER, 0, batch.sequence),
                [("value", batch.sequence + place) for place in range(batch.count)],
            )
            for batch in batches
        ]
        answers = verdicts(call_append(self.bench.client, self.keys, *sent))
        return [_ERRORS[each] if isinstance(each, str) else ErrorCode.none for each in answers]

    def answer(self, batch: Batch, error: ErrorCode, reply: Reply) -> None:
        if error is ErrorCode.none:
            error = reply.value
        if error in SENT_AGAIN:
            self.refused.note("t-0", batch.header, error)
        batch.answer = error

    # The servers.

    @rule()
    def replicate(self) -> None:
        """A replica has all that was appended so far."""
        self.copy = [self.bench.client.dump(key) for key in self.keys]

    @precondition(lambda self: self.changes)
    @rule()
    def fail_over(self) -> None:
        """The replica takes over, and the next leader notes the cut."""
        for key, dumped in zip(self.keys, self.copy, strict=True):
            self.bench.client.delete(key)
            if dumped is not None:
                self.bench.client.restore(key, 0, dumped)
        meta = self.keys[2]
        (log_end,) = struct.unpack_from(">d", self.bench.client.hget(meta, "log") or bytes(8))
        self.cuts.append(f"{len(self.cuts) + 1}:{log_end:.0f}")
        seconds, _ = self.bench.client.time()
        cut = f"{1000 * seconds}:{log_end:.0f}"
        self.bench.client.hset(meta, mapping={"leaders": " ".join(self.cuts), "cut": cut})
        self.bench.client.hdel(meta, "taken_over")

    @precondition(lambda self: self.changes)
    @rule()
    def change_leader(self) -> None:
        """Another leader follows, without a loss."""
        seconds, _ = self.bench.client.time()
        self.bench.client.hset(self.keys[2], "taken_over", 1000 * seconds)

    @invariant()
    def each_record_is_there_once_and_in_order(self) -> None:
        if hasattr(self, "keys"):
            values = [int(fields[b"value"]) for _, fields in self.bench.client.xrange(self.keys[0])]
            assert values == sorted(set(values))


def run(server: Server, machine: type[ProducerMachine]) -> None:
    machine.server = server
    run_machine(machine, examples=100, steps=40)


def test_producer_keeps_order_without_duplicates(server: Server) -> None:
    run(server, ProducerMachine)


def test_model_notices_batches_that_are_appended_behind_a_refused_one(server: Server) -> None:
    class Forgetful(ProducerMachine):
        remembers = False
        # After a change, the log refuses gaps with an error after which batches are sent again.
        changes = False

    with pytest.raises(AssertionError):
        run(server, Forgetful)

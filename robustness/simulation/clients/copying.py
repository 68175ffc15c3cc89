"""Members that copy what they read to another topic, in transactions with their offsets (exactly once)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from robustness.plan import ProducerPlan
from robustness.simulation.clients.groups import ClassicMember, Member, ModernMember, Rejoin
from robustness.simulation.clients.transactional import Offsets, TransactionalProducer
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from robustness.plan import GroupPlan
    from robustness.simulation.clients.client import Client, Partition


# The share of transactions that a copying member aborts by itself.
_ABORTED: Final = 0.05


class _Copying(Member):
    """Commits by a transaction with one copy of each record."""

    def __init__(self, client: Client, plan: GroupPlan, partitions: Mapping[str, int]) -> None:
        super().__init__(client, plan, partitions)
        assert plan.copies_to is not None
        topics = (plan.copies_to,)
        copies = ProducerPlan(client.name, plan.client, "transactional", topics, -1, 1, 0)
        self._targets = [(plan.copies_to, number) for number in range(partitions[plan.copies_to])]
        self._producer = TransactionalProducer(client, copies, partitions)
        self._is_ready = False

    async def commit(self) -> None:
        places = self.moved()
        if not places:
            return
        if not self._is_ready and not await self._producer.initialise():
            raise Disconnected("no producer ID")
        self._is_ready = False
        committed = {(place.topic, place.partition) for place in places}
        originals: dict[Partition, list[str]] = defaultdict(list)
        received, self.consumer.received = self.consumer.received, []
        for record in received:
            if (record.topic, record.partition) in committed:
                originals[self.client.dice.one_of(self._targets)].append(record.value)
            else:
                self.consumer.received.append(record)
        offsets = Offsets(self.plan.name, self.member_id, self.epoch, places)
        action = "abort" if self.client.dice.chance(_ABORTED) else "commit"
        self._is_ready = await self._producer.transact(originals, action, offsets)
        if not self._producer.has_committed:
            # What was read has to be read again, unless the transaction was committed after all.
            self.consumer.positions.clear()
            raise Rejoin
        self.note_committed(places)


class ClassicCopier(_Copying, ClassicMember):
    """A copying member of the classic protocol."""


class ModernCopier(_Copying, ModernMember):
    """A copying member of the consumer protocol."""

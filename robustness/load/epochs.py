"""A client that asks where leader epochs end, as consumers do after a change of leader."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import kio.schema.offset_for_leader_epoch.v4 as offset_for_leader_epoch
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderPartition, OffsetForLeaderTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from korvet.cli.client import ClientError, Cluster, check
from korvet.config.address import Address
from robustness.dice import Dice
from robustness.history import OffsetForEpoch
from robustness.load.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from robustness.clients import Recorder

INTERVAL_S: Final = 0.3
TIMEOUT_S: Final = 5.0
CONSUMER: Final = BrokerId(-1)


class EpochAsker(Worker):
    """Asks the leader of a partition for the end of an epoch that it has seen in Metadata before."""

    def __init__(self, recorder: Recorder, bootstrap: str, partitions: Mapping[str, int], seed: int) -> None:
        super().__init__("epochs")
        self._record, self._bootstrap, self._partitions = recorder, bootstrap, partitions
        self._dice = Dice(seed, self.name)
        self._seen: dict[tuple[str, int], list[int]] = defaultdict(list)

    def work(self) -> None:
        while not self.closing.wait(INTERVAL_S):
            topic = self._dice.one_of(sorted(self._partitions))
            partition = self._dice.below(self._partitions[topic])
            try:
                with Cluster(self._dice.one_of(self._bootstrap.split(",")), TIMEOUT_S) as cluster:
                    self._ask(cluster, topic, partition)
            except ClientError:
                # The history shows a question without an answer.
                continue

    def _ask(self, cluster: Cluster, topic: str, partition: int) -> None:
        metadata = cluster.metadata([topic])
        addresses = {each.node_id: Address(each.host, each.port) for each in metadata.brokers}
        (described,) = metadata.topics
        check(described.error_code, topic)
        state = next((each for each in described.partitions if each.partition_index == partition), None)
        if state is None or state.leader_id not in addresses:
            return
        seen = self._seen[topic, partition]
        if state.leader_epoch not in seen:
            seen.append(int(state.leader_epoch))
        fields: dict[str, Any] = {"topic": topic, "partition": partition, "epoch": self._dice.one_of(seen)}
        self._record.add(OffsetForEpoch, self.name, "invoke", **fields)
        asked = OffsetForLeaderPartition(
            partition=i32(partition), current_leader_epoch=i32(-1), leader_epoch=i32(fields["epoch"])
        )
        request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
            replica_id=CONSUMER,
            topics=(OffsetForLeaderTopic(topic=TopicName(topic), partitions=(asked,)),),
        )
        kind = offset_for_leader_epoch.OffsetForLeaderEpochResponse
        answer = cluster.ask(request, kind, addresses[state.leader_id]).topics[0].partitions[0]
        check(answer.error_code, topic)
        found = {"answered": int(answer.leader_epoch), "end": int(answer.end_offset)}
        self._record.add(OffsetForEpoch, self.name, "ok", **fields, **found)

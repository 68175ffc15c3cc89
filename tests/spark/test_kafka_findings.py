"""What a report and its commands say about a Kafka cluster, without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from korvet.spark.session.kafka_cluster import Extent
from korvet.spark.session.kafka_probe import likely_cause
from korvet.spark.tables.readers import held_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.spark.session.kafka_cluster import Cluster
    from korvet.spark.tables.needs import TopicPartition


class GrowingLogs:
    """Partition 0 has an open transaction at offset 3; another record is appended before each answer."""

    def __init__(self) -> None:
        self.end = 5

    def ends(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self.end += 1
        return dict.fromkeys(places, self.end)

    def extents(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, Extent]:
        self.end += 1
        return {place: Extent(0, self.end if place[1] else 3) for place in places}


def test_records_that_are_appended_meanwhile_are_no_transaction() -> None:
    cluster = cast("Cluster", GrowingLogs())
    assert held_back(cluster, [("orders", 0), ("orders", 1)]) == {("orders", 0): 3}


@pytest.mark.parametrize(
    ("bootstrap", "cause"),
    [
        ("kafka..example:9092", "the host kafka..example is unknown"),
        # Kafka's client names these.
        ("localhost:65536", None),
        (":9092", None),
        ("localhost", None),
    ],
)
def test_an_address_that_can_not_exist(bootstrap: str, cause: str | None) -> None:
    assert likely_cause(bootstrap, {}) == cause

"""The replicas of a partition, as Kafka clients see them.

The leader stands for the primary. Each replica of the primary has a node ID by its number, from FIRST_REPLICA
on. No broker has such an ID, and the list of brokers doesn't contain it: clients connect to any broker in the
list, and none serves only a replica. Clients know the case, because Kafka shows a replica on a broker that is
down in the same way. Java and librdkafka then show a node without a host. Clients connect only to leaders.
Tools count replicas and in-sync replicas, and print their IDs. An ID doesn't depend on the address of the
replica, so a failover changes no ID.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.cluster.assignment import NO_NODE

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.cluster.topic import Topic
    from korvet.outlook.copies import Copies

FIRST_REPLICA: Final = 1_000_000_001


class Replicas(NamedTuple):
    """The node IDs of a partition."""

    all: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@lru_cache(maxsize=256)
def replicas_of(leader: int, copies: Copies) -> Replicas:
    """The node IDs of a partition with that leader. There are none while the partition has no leader."""
    if leader == NO_NODE:
        return Replicas((), (), ())
    others = tuple(range(FIRST_REPLICA, FIRST_REPLICA + copies.expected))
    return Replicas((leader, *others), (leader, *others[: copies.in_sync]), others[copies.attached :])


def copies_of(context: RequestContext, topic: Topic) -> Copies | list[Copies]:
    """The copies of any partition of a topic, or those of each. The topic expects at least as many as it asks
    for.
    """
    services = context.services
    wanted = services.topics.level(topic).replicas
    return services.copies.of_topic(services.topics.target(topic).name, topic.partitions, wanted)


def replication_factor(context: RequestContext, topic: Topic) -> int:
    """The number of copies that each partition of a topic should have, with the primary."""
    wanted = context.services.topics.level(topic).replicas
    return 1 + context.services.copies.expecting(wanted)

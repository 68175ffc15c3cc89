"""The sizes of topics: their payload, and about how much of Redis's memory they take."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse

from korvet.cli.client import ClientError, Cluster, check
from korvet.outlook.memory_forecast import memory_factor


class TopicSize(NamedTuple):
    """The payload of a topic (bytes of keys, values and headers), and the memory that it takes in Redis: its
    share of what Redis uses. None if the broker doesn't tell.
    """

    payload_bytes: int | None
    memory_bytes: int | None

    def __add__(self, other: object) -> "TopicSize":
        assert isinstance(other, TopicSize)
        return TopicSize(*map(_sum, self, other))


NOTHING = TopicSize(0, 0)
_UNTOLD = TopicSize(None, None)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def topic_sizes(cluster: Cluster, names: Iterable[str]) -> dict[str, TopicSize]:
    """Ask all brokers (DescribeLogDirs). No size is known without the right to describe the cluster, or if a
    broker can't be reached.
    """
    payload: Counter[str] = Counter()
    used_bytes: int | None = None
    for address in cluster.brokers():
        try:
            answer = cluster.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, address)
            for folder in answer.results:
                check(folder.error_code, "sizes")
            check(answer.error_code, "sizes")
        except ClientError:
            return dict.fromkeys(names, _UNTOLD)
        for folder in answer.results:
            if folder.total_bytes >= 0:
                # Each broker reports the memory of all servers.
                used_bytes = int(folder.total_bytes - folder.usable_bytes)
            for topic in folder.topics:
                payload[str(topic.name)] += sum(int(part.partition_size) for part in topic.partitions)
    factor = None if used_bytes is None else memory_factor(used_bytes, payload.total())
    return {
        name: TopicSize(payload[name], None if factor is None else round(factor * payload[name]))
        for name in names
    }

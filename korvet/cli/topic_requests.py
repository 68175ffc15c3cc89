"""Requests about topics and their settings."""

from collections.abc import Mapping
from datetime import timedelta

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse
from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_records.v2.request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32, i32Timedelta, i64

from korvet.cli.client import TIMEOUT_S, ClientError, Cluster, check, error_of

# Number of Kafka's schema for "the broker's default".
_BROKER_DEFAULT = -1

_TIMEOUT = i32Timedelta.parse(timedelta(seconds=TIMEOUT_S))


def create_topic(cluster: Cluster, name: str, partitions: int | None, configs: Mapping[str, str]) -> int:
    """Create a topic, by default with the broker's number of partitions. Returns the number of partitions."""
    topic = CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(_BROKER_DEFAULT if partitions is None else partitions),
        replication_factor=i16(_BROKER_DEFAULT),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
    )
    request = CreateTopicsRequest(topics=(topic,), timeout=_TIMEOUT, validate_only=False)
    (result,) = cluster.ask(request, CreateTopicsResponse).topics
    check(result.error_code, f"topic {name}", result.error_message)
    return int(result.num_partitions)


def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic and all its records."""
    state = DeleteTopicState(name=TopicName(name), topic_id=None)
    (result,) = cluster.ask(
        DeleteTopicsRequest(topics=(state,), timeout=_TIMEOUT), DeleteTopicsResponse
    ).responses
    check(result.error_code, f"topic {name}", result.error_message)


def delete_records(cluster: Cluster, name: str, before: Mapping[int, int]) -> dict[int, int | ClientError]:
    """Delete the records before an offset of each partition.

    Returns the new log start of each partition, or the error that prevented the deletion.
    """
    done: dict[int, int | ClientError] = {}
    for broker, led in cluster.leaders(name, before).items():
        partitions = tuple(
            DeleteRecordsPartition(partition_index=i32(index), offset=i64(before[index])) for index in led
        )
        topic = DeleteRecordsTopic(name=TopicName(name), partitions=partitions)
        request = DeleteRecordsRequest(topics=(topic,), timeout=_TIMEOUT)
        for answer in cluster.ask(request, DeleteRecordsResponse, broker).topics:
            for part in answer.partitions:
                index = int(part.partition_index)
                error = error_of(part.error_code, f"{name} partition {index}")
                done[index] = int(part.low_watermark) if error is None else error
    return done


def add_partitions(cluster: Cluster, name: str, count: int) -> None:
    """Raise a topic's number of partitions to `count`."""
    topic = CreatePartitionsTopic(name=TopicName(name), count=i32(count), assignments=None)
    request = CreatePartitionsRequest(topics=(topic,), timeout=_TIMEOUT, validate_only=False)
    (result,) = cluster.ask(request, CreatePartitionsResponse).results
    check(result.error_code, f"topic {name}", result.error_message)

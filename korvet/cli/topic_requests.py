"""Requests about topics and their settings."""

from collections.abc import Mapping
from datetime import timedelta

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse
from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult, DescribeConfigsResponse
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta

from korvet.cli.client import TIMEOUT_S, Cluster, check

# Numbers of Kafka's schemas: the resource type "topic", two operations, and "the broker's default".
_TOPIC_RESOURCE = i8(2)
_SET, _DELETE = i8(0), i8(1)
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


def add_partitions(cluster: Cluster, name: str, count: int) -> None:
    """Raise a topic's number of partitions to `count`."""
    topic = CreatePartitionsTopic(name=TopicName(name), count=i32(count), assignments=None)
    request = CreatePartitionsRequest(topics=(topic,), timeout=_TIMEOUT, validate_only=False)
    (result,) = cluster.ask(request, CreatePartitionsResponse).results
    check(result.error_code, f"topic {name}", result.error_message)


def topic_configs(cluster: Cluster, name: str) -> tuple[DescribeConfigsResourceResult, ...]:
    """Returns all configs of a topic."""
    resource = DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=(resource,), include_synonyms=False, include_documentation=False
    )
    (result,) = cluster.ask(request, DescribeConfigsResponse).results
    check(result.error_code, f"topic {name}", result.error_message)
    return result.configs


def alter_topic_configs(cluster: Cluster, name: str, changes: Mapping[str, str | None]) -> None:
    """Set configs of a topic, or reset them to the default if the value is None."""
    configs = tuple(
        AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    )
    resource = AlterConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    (result,) = cluster.ask(request, IncrementalAlterConfigsResponse).responses
    check(result.error_code, f"topic {name}", result.error_message)

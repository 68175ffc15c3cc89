"""Requests about the configs of topics, brokers and loggers."""

from collections.abc import Mapping
from enum import IntEnum

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult, DescribeConfigsResponse
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.static.primitive import i8

from korvet.cli.client import ClientError, Cluster, check
from korvet.config.address import Address

# Numbers of two operations in Kafka's schemas.
_SET, _DELETE = i8(0), i8(1)


class ResourceType(IntEnum):
    """Kafka's numbers of resource types (ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


def describe(cluster: Cluster, kind: ResourceType, name: str) -> tuple[DescribeConfigsResourceResult, ...]:
    """Returns all configs of a resource, with their sources. Raises ClientError."""
    resource = DescribeConfigsResource(resource_type=i8(kind), resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(
        resources=(resource,), include_synonyms=False, include_documentation=False
    )
    answer = cluster.ask(request, DescribeConfigsResponse, _broker_of(cluster, kind, name))
    (result,) = answer.results
    check(result.error_code, _subject(kind, name), result.error_message)
    return result.configs


def alter(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set configs of a resource, or reset them to the default if the value is None. Raises ClientError.

    With `validate_only`, nothing changes.
    """
    configs = tuple(
        AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    )
    resource = AlterConfigsResource(resource_type=i8(kind), resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    answer = cluster.ask(request, IncrementalAlterConfigsResponse, _broker_of(cluster, kind, name))
    (result,) = answer.responses
    check(result.error_code, _subject(kind, name), result.error_message)


def _broker_of(cluster: Cluster, kind: ResourceType, name: str) -> Address | None:
    """The broker that a resource belongs to; None if any broker can answer."""
    if kind in {ResourceType.TOPIC, ResourceType.GROUP} or not name:
        return None
    for broker in cluster.metadata([]).brokers:
        if str(broker.node_id) == name:
            return Address(broker.host, broker.port)
    raise ClientError(f"there is no broker {name}")


def _subject(kind: ResourceType, name: str) -> str:
    if kind in {ResourceType.TOPIC, ResourceType.GROUP}:
        return f"{kind.name.lower()} {name}"
    return f"broker {name}" if name else "all brokers"

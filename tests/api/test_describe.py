"""ApiVersions, DescribeCluster and DescribeConfigs, and requests of unknown APIs."""

from __future__ import annotations

import struct

import pytest

from korvet.protocol import registry
from tests.api.asking import versions
from tests.support.wire import decode_response, header

UNKNOWN_TOPIC, INVALID_TOPIC, UNSUPPORTED_VERSION, INVALID_REQUEST = 3, 17, 35, 42
UNSUPPORTED_ENDPOINT, MISMATCHED_ENDPOINT = 115, 114
REBOOTSTRAP_REQUIRED, ANY_NODE = 129, -1
TOPIC, BROKER = 2, 4


@versions("ApiVersions")
def test_api_versions(ask, korvet, version):
    answer = ask("ApiVersions", version, client_software_name="kafka-x.y", client_software_version="1.2-rc")
    assert answer.error_code == 0
    served = {int(each.api_key): (each.min_version, each.max_version) for each in answer.api_keys}
    assert served == {api.key: (api.advertised_min, api.max_version) for api in registry.registered()}


@versions("ApiVersions", since=4)
def test_features(ask, korvet, version):
    """Version 4 lists features that begin with 0, which version 3 may not; all but share groups are in force.
    Their epoch is known; other tests on this broker raise it.
    """
    answer = ask("ApiVersions", version, client_software_name="x", client_software_version="1")
    supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    levels = {one.name: (one.min_version_level, one.max_version_level) for one in answer.finalized_features}
    assert supported == {
        "group.version": (0, 1),
        "metadata.version": (7, 33),
        "share.version": (0, 2),
        "transaction.version": (0, 2),
    }
    assert levels == {
        "group.version": (1, 1),
        "metadata.version": (33, 33),
        "share.version": (2, 2),
        "transaction.version": (2, 2),
    }
    assert answer.finalized_features_epoch >= 0


@pytest.mark.parametrize(
    ("cluster", "node", "error"),
    [
        (None, ANY_NODE, 0),
        ("ours", "ours", 0),
        ("ours", 77, REBOOTSTRAP_REQUIRED),
        ("another", "ours", REBOOTSTRAP_REQUIRED),
        ("", "ours", REBOOTSTRAP_REQUIRED),
        ("ours", ANY_NODE, INVALID_REQUEST),
        (None, "ours", INVALID_REQUEST),
    ],
)
def test_a_client_hears_that_it_has_come_to_another_broker(ask, cluster, node, error):
    found = ask("Metadata", 9, topics=[])
    cluster = found.cluster_id if cluster == "ours" else cluster
    node = found.brokers[0].node_id if node == "ours" else node
    software = {"client_software_name": "x", "client_software_version": "1"}
    answer = ask("ApiVersions", 5, **software, cluster_id=cluster, node_id=node)
    assert answer.error_code == error
    assert bool(answer.api_keys) == (error == 0)


@versions("ApiVersions", since=3)
def test_software_names_that_cannot_be(ask, version):
    for name in ("", "-a", "a b", "a/"):
        answer = ask("ApiVersions", version, client_software_name=name, client_software_version="1")
        assert (answer.error_code, answer.api_keys) == (INVALID_REQUEST, ())


@pytest.mark.parametrize("version", [6, 99, 32_767, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(ask, korvet, version):
    answer = decode_response(18, 0, ask.raw.ask(header(18, version, 9) + b"\x00whatever"))
    assert (answer.correlation_id, answer.left_bytes) == (9, 0)
    assert answer.message.error_code == UNSUPPORTED_VERSION
    assert len(answer.message.api_keys) == len(registry.registered())


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 0), (3, 99), (3, -1), (0, 2), (39, 1), (38, 1)])
def test_unknown_apis_and_versions(ask, korvet, key, version):
    answer = ask.raw.ask(header(key, version, 11) + b"rest")
    assert answer == struct.pack(">ih", 11, UNSUPPORTED_VERSION)
    assert ask.raw.works()


@versions("DescribeCluster")
def test_describe_cluster(ask, broker, version):
    answer = ask("DescribeCluster", version, include_cluster_authorized_operations=False, endpoint_type=1)
    assert answer.error_code == 0
    (node,) = answer.brokers
    assert (node.host, node.port, node.broker_id) == (broker.host, broker.port, answer.controller_id)
    assert answer.cluster_id == ask("Metadata", 4, topics=[]).cluster_id
    assert answer.cluster_authorized_operations == -(2**31)
    answer = ask("DescribeCluster", version, include_cluster_authorized_operations=True, endpoint_type=1)
    assert answer.cluster_authorized_operations > 0


def test_endpoints_of_other_types(ask):
    for endpoint_type, error in ((2, MISMATCHED_ENDPOINT), (9, UNSUPPORTED_ENDPOINT)):
        answer = ask("DescribeCluster", 1, endpoint_type=endpoint_type)
        assert (answer.error_code, answer.endpoint_type) == (error, 1)
        assert answer.error_message


def describe(ask, version, resource_type, name, keys=None, **more):
    resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": keys}
    (result,) = ask("DescribeConfigs", version, resources=[resource], **more).results
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result


@versions("DescribeConfigs")
def test_describe_configs_of_a_topic(ask, new_topic, version):
    name = new_topic(1, {"cleanup.policy": "compact", "retention.ms": "5000"})
    result = describe(ask, version, TOPIC, name, include_synonyms=True, include_documentation=True)
    assert result.error_code == 0
    configs = {config.name: config for config in result.configs}
    assert configs["cleanup.policy"].value == "compact"
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5000", 1)
    assert configs["max.message.bytes"].value == "1048588"
    first = configs["retention.ms"].synonyms[0]
    assert (first.name, first.value, first.source) == ("retention.ms", "5000", 1)
    if version >= 3:
        assert configs["retention.ms"].config_type == 5
        # What Kafka says first of each, in other words.
        assert all(config.documentation for config in configs.values())
        assert "a record is kept" in configs["retention.ms"].documentation
        assert "has no effect" in configs["segment.ms"].documentation
    result = describe(ask, version, TOPIC, name, ["retention.ms", "no.such"])
    assert [config.name for config in result.configs] == ["retention.ms"]
    assert result.configs[0].synonyms == ()


@versions("DescribeConfigs")
def test_describe_configs_of_the_broker(ask, version):
    (node,) = ask("Metadata", 1, topics=[]).brokers
    result = describe(ask, version, BROKER, str(node.node_id))
    assert result.error_code == 0
    configs = {config.name: config.value for config in result.configs}
    assert configs["auto.create.topics.enable"] == "true"
    assert configs["num.partitions"] == "1"


@versions("DescribeConfigs")
def test_resources_that_cannot_be_described(ask, fresh, version):
    for resource_type, name, error in [
        (TOPIC, fresh("never"), UNKNOWN_TOPIC),
        (TOPIC, "a b", INVALID_TOPIC),
        (TOPIC, "", INVALID_TOPIC),
        (BROKER, "77", INVALID_REQUEST),
        (BROKER, "x", INVALID_REQUEST),
        (0, "x", INVALID_REQUEST),
        (1, "x", INVALID_REQUEST),
    ]:
        result = describe(ask, version, resource_type, name)
        assert (result.error_code, result.configs) == (error, ()), (resource_type, name)


def test_secrets_are_not_shown(ask, korvet):
    result = describe(ask, 4, BROKER, "1", ["redis"])
    assert [(config.value, config.is_sensitive) for config in result.configs] == [(None, True)]

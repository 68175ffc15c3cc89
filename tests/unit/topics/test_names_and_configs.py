"""Topic names and configs: Kafka's rules, and the values in force."""

from __future__ import annotations

import time

import pytest

from korvet.topics.configs import (
    TOPIC_CONFIGS,
    ConfigSource,
    InvalidConfig,
    check_topic_config,
    describe,
    policy_of,
)
from korvet.topics.errors import InvalidTopicName
from korvet.topics.names import CollidingNames, check_topic_name


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "{a}", "a:b"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        check_topic_name(name)


def test_names_that_metrics_could_not_tell_apart() -> None:
    names = CollidingNames()
    names.follow(dict.fromkeys(["a.b", "ab", "a-b"]), 1)
    names.check("a.b")
    names.follow(dict.fromkeys(["x", "a_b"]), 2)
    with pytest.raises(InvalidTopicName, match="collides with existing topic: a_b"):
        names.check("a.b")
    names.follow({}, 3)
    names.check("a.b")


def test_a_check_for_collisions_does_not_look_at_all_topics() -> None:
    def took_s(count: int) -> float:
        names = CollidingNames()
        names.follow(dict.fromkeys(f"some.topic_{number}" for number in range(count)), 1)
        began = time.thread_time()
        for number in range(2_000):
            names.check(f"other.topic_{number}")
        return time.thread_time() - began

    def least_s(count: int) -> float:
        return min(took_s(count) for _ in range(5))

    assert least_s(20_000) < 100 * least_s(20)


@pytest.mark.parametrize("config", TOPIC_CONFIGS.values(), ids=lambda config: config.name)
def test_every_default_is_allowed(config) -> None:  # type: ignore[no-untyped-def]
    assert check_topic_config(config.name, config.default) == config.default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no.such", "1"),
        ("retention.ms", None),
        ("retention.ms", "-2"),
        ("retention.ms", "1.5"),
        ("retention.ms", "1_000"),
        ("retention.ms", "_1"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "23"),
        ("compression.zstd.level", "-131073"),
        ("min.cleanable.dirty.ratio", "_0"),
        ("min.cleanable.dirty.ratio", "1e_5"),
        ("retention.ms", str(2**63)),
        ("max.message.bytes", str(2**31)),
        ("cleanup.policy", "delete,"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "0_1"),
        ("preallocate", "yes"),
        ("offset.assignment", "random"),
        ("native.format", "field:"),
        ("native.format", "xml"),
        ("leader.replication.throttled.replicas", "0:1,x"),
        ("follower.replication.throttled.replicas", "*,0:1"),
    ],
)
def test_configs_that_cannot_be(name: str, value: str | None) -> None:
    with pytest.raises(InvalidConfig, match=name):
        check_topic_config(name, value)


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("retention.ms", " 5000 ", "5000"),
        ("preallocate", "False", "false"),
        ("acks.all.fsync", "TRUE", "true"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
        ("cleanup.policy", "compact, delete,compact", "compact,delete"),
        ("cleanup.policy", "", ""),
    ],
)
def test_configs_in_other_spellings(name: str, value: str, checked: str) -> None:
    assert check_topic_config(name, value) == checked


def test_which_value_is_in_force() -> None:
    config = TOPIC_CONFIGS["retention.ms"]
    own = describe(config, {"retention.ms": "1"}, {"log.retention.ms": [("2", ConfigSource.STATIC_BROKER)]})
    assert (own.value, own.source) == ("1", ConfigSource.DYNAMIC_TOPIC)
    assert [source for _, _, source in own.synonyms] == [1, 4, 5]
    broker = describe(config, {}, {"log.retention.ms": [("2", ConfigSource.STATIC_BROKER)]})
    assert (broker.value, broker.source) == ("2", ConfigSource.STATIC_BROKER)
    default = describe(config, {}, {})
    assert (default.value, default.source) == (config.default, ConfigSource.DEFAULT)


def test_policy() -> None:
    policy = policy_of({"cleanup.policy": "compact, delete", "delete.accepted.records": "true"}, {})
    assert (policy.compacts, policy.deletes, policy.deletes_accepted) == (True, True, True)
    of_broker = {"message.max.bytes": [("77", ConfigSource.STATIC_BROKER)]}
    policy = policy_of({"message.timestamp.type": "LogAppendTime"}, of_broker)
    assert (policy.log_append_time, policy.max_message_bytes, policy.deletes) == (True, 77, True)

"""Dynamic settings: which values are in force, who learns of a change, and what is refused."""

from __future__ import annotations

import asyncio
import logging

import pytest

from korvet.config.changes import ConfigChange, ConfigOperation
from korvet.config.dynamic import NotAList, Scope, altered, check_names, is_static, scope_of
from korvet.config.errors import ConfigError
from korvet.config.keys import settings
from korvet.config.kinds import ConfigSource, ConfigType, type_of
from korvet.config.live import LiveConfig
from korvet.config.settings import Config
from korvet.config.values import parse_value, text_of
from tests.support.kafka_dynamic import KAFKA_DYNAMIC

SETTINGS = {setting.key: setting for setting in settings()}
RETENTION = "log.retention.ms"


def live(**static: object) -> LiveConfig:
    return LiveConfig(Config(**static))  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.key)
def test_every_default_is_a_value_of_its_type(setting):
    if setting.default is None:
        assert type_of(setting) in {ConfigType.STRING, ConfigType.LIST, ConfigType.PASSWORD}
    else:
        assert parse_value(setting, setting.key, f" {text_of(setting.default)} ") == setting.default


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("max.connections", "x", "Not a number of type INT"),
        ("max.connections", "", "Not a number of type INT"),
        ("max.connections", "2147483648", "Not a number of type INT"),
        ("max.connections", "1.5", "Not a number of type INT"),
        ("max.connections", "1_000", "Not a number of type INT"),
        ("log.cleaner.min.cleanable.ratio", "0_0.1", "Not a number of type DOUBLE"),
        ("max.connections", "0", "Value must be at least 1"),
        (RETENTION, str(2**63), "Not a number of type LONG"),
        ("log.cleaner.backoff.ms", "soon", "Not a number of type LONG"),
        ("log.cleaner.backoff.ms", str(2**31), "Value must be no more than 2147483647"),
        ("producer.id.expiration.ms", str(2**31), "Not a number of type INT"),
        (RETENTION, "-2", "Value must be at least -1"),
        ("node_id", "1000000001", "Value must be no more than 1000000000"),
        ("log.cleaner.min.cleanable.ratio", "half", "Not a number of type DOUBLE"),
        ("log.cleaner.min.cleanable.ratio", "1.1", "Value must be no more than 1"),
        ("log.cleaner.min.cleanable.ratio", "nan", "Value must be at least 0"),
        ("log.cleaner.min.cleanable.ratio", "_0", "Not a number of type DOUBLE"),
        ("log.retention.ms", "_1", "Not a number of type LONG"),
        ("acks.all.fsync", "yes", "Expected value to be either true or false"),
        ("ssl.client.auth", "maybe", "String must be one of: "),
        ("offsets.commit.value.version", "5", "Value must be one of: 3, 4"),
    ],
)
def test_values_that_cannot_be(key, text, reason):
    with pytest.raises(ConfigError) as refused:
        parse_value(SETTINGS[key], "the.name", text)
    assert str(refused.value).startswith(f"Invalid value {text} for configuration the.name: {reason}")


def test_the_narrower_value_precedes():
    config = live(log_retention_ms=1)
    assert config.now.log_retention_ms == 1
    config.take({RETENTION: "2"}, {})
    assert config.now.log_retention_ms == 2
    config.take({RETENTION: "2"}, {RETENTION: "3"})
    assert config.now.log_retention_ms == 3
    assert config.layers(SETTINGS[RETENTION]) == [
        ("3", ConfigSource.DYNAMIC_BROKER),
        ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("1", ConfigSource.STATIC_BROKER),
    ]
    config.take({}, {})
    assert config.now == config.static


def test_listeners_have_settings_of_their_own():
    config = live(listeners="A://:1,B://:2", listener_security_protocol_map="A:PLAINTEXT,B:PLAINTEXT")
    config.take({"listener.name.b.max.connections": "5"}, {"listener.name.nosuch.max.connections": "6"})
    assert config.now.of_listener("B").max_connections == 5
    assert config.now.of_listener("A").max_connections == config.now.max_connections == 2**31 - 1


def test_values_that_cannot_be_in_force_do_not_harm_others(caplog):
    config = live()
    cluster = {RETENTION: "soon", "group.max.session.timeout.ms": "10", "num.partitions": "7", "x": "y"}
    broker = {"max.connections": "5", "listener.name.plaintext.num.partitions": "9"}
    with caplog.at_level(logging.ERROR):
        config.take(cluster, broker)
    assert "some dynamic settings have no effect" in caplog.text
    assert config.now == Config(max_connections=5)
    assert config.layers(SETTINGS[RETENTION]) == []
    # They are shown, and gone when somebody deletes them.
    assert config.of_cluster == cluster
    caplog.clear()
    config.take({}, broker)
    assert config.now == Config(max_connections=5)
    assert not caplog.text


def test_values_that_need_each_other_in_any_order():
    config = live()
    pair = {"group.min.session.timeout.ms": "2000000", "group.max.session.timeout.ms": "3000000"}
    for cluster in (pair, dict(reversed(pair.items()))):
        config.take({**cluster, RETENTION: "soon"}, {})
        assert config.now.group_min_session_timeout_ms == 2_000_000
        config.take({}, {})


def test_a_bad_value_of_the_broker_keeps_nobody_from_changing_the_cluster():
    config = live()
    config.take({}, {RETENTION: "soon"})
    config.verify({"max.connections": "5"}, {"max.connections"}, of_cluster=True)
    with pytest.raises(ConfigError, match="Not a number"):
        config.verify({RETENTION: "soon"}, {RETENTION}, of_cluster=False)


def test_a_part_can_refuse_settings():
    config, seen = live(), []

    def guard(new: Config, names: object) -> None:
        seen.append(names)
        if new.max_connections == 5:
            raise ConfigError("not five")

    config.guard(guard)
    with pytest.raises(ConfigError, match="not five"):
        config.verify({"max.connections": "5"}, {"max.connections"}, of_cluster=True)
    assert seen == [{"max.connections"}]
    config.take({"max.connections": "5", RETENTION: "7"}, {})
    assert config.now == Config(log_retention_ms=7)


def test_followers_learn_of_changes(caplog):
    config, seen = live(), []

    def fails(new: Config) -> None:
        raise RuntimeError(f"no {new.log_retention_ms}")

    config.follow(fails)
    config.follow(lambda new: seen.append(new.log_retention_ms))
    config.take({RETENTION: "7"}, {})
    config.take({RETENTION: "7"}, {})
    assert seen == [7]
    assert "no 7" in caplog.text
    config.renew()
    assert seen == [7, 7]


async def test_a_pause_ends_when_its_time_is_shortened():
    config = live(log_cleaner_backoff_ms=3_600_000)
    pausing = asyncio.create_task(config.pause(lambda now: now.log_cleaner_backoff_ms / 1000))
    await asyncio.sleep(0)
    config.take({RETENTION: "7"}, {})
    await asyncio.sleep(0)
    assert not pausing.done()
    config.take({"log.cleaner.backoff.ms": "1"}, {})
    await asyncio.wait_for(pausing, 20)


def setting(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, ConfigOperation.SET, value)


def deleting(name: str) -> ConfigChange:
    return ConfigChange(name, ConfigOperation.DELETE, "")


def appending(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, ConfigOperation.APPEND, value)


def test_changes_of_dynamic_settings():
    policy = "log.cleanup.policy"
    before = {RETENTION: "1", policy: "compact"}
    assert altered(before, [setting(RETENTION, " 2 ")]) == {
        RETENTION: "2",
        policy: "compact",
    }
    assert altered(before, [deleting(RETENTION), deleting("x")]) == {policy: "compact"}
    assert altered(before, [appending(policy, "delete,compact")])[policy] == "compact,delete"
    assert altered(before, [ConfigChange(policy, ConfigOperation.SUBTRACT, "compact")])[policy] == ""
    assert altered({}, [appending(policy, "compact")])[policy] == "delete,compact"
    assert altered({}, [appending("ssl.cipher.suites", "A")]) == {"ssl.cipher.suites": "A"}
    for name in (RETENTION, "no.such"):
        with pytest.raises(NotAList):
            altered({}, [appending(name, "1")])
    assert before == {RETENTION: "1", policy: "compact"}


def test_scopes():
    assert {scope_of(key) for key in SETTINGS} == set(Scope)
    assert is_static("num.partitions")
    assert is_static("listener.name.x.connections.max.reauth.ms")
    assert not is_static("listener.name.x.max.connections")
    assert not is_static("leader.replication.throttled.rate")
    # In Kafka's order.
    every = {
        "num.partitions": "1",
        "ssl.keystore.location": "/x",
        RETENTION: "x",
        "sasl.enabled.mechanisms": "",
    }
    for said in ("dynamically: [num", "prefix: [ssl", "Not a number", "specified: [sasl"):
        with pytest.raises(ConfigError) as refused:
            check_names(every, of_cluster=True)
        assert said in str(refused.value)
        del every[next(iter(every))]


def test_settings_that_kafka_can_change_can_change():
    """Except listeners. Settings of groups, and some of korvet's own, can change, too."""
    dynamic = {key for key in SETTINGS if scope_of(key) is not Scope.STATIC}
    of_kafka = KAFKA_DYNAMIC & SETTINGS.keys()
    assert of_kafka - dynamic == {"listeners", "listener.security.protocol.map"}
    assert not any(is_static(name) for name in KAFKA_DYNAMIC - SETTINGS.keys())

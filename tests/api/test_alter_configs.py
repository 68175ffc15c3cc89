"""IncrementalAlterConfigs and AlterConfigs: Kafka's responses; changes are in force at once."""

from __future__ import annotations

import json
import sys
import threading

import pytest
from aiokafka.record import MemoryRecords

from korvet.offsets.packing import unpack
from tests.api.asking import connect, versions
from tests.api.batches import batch, now_ms, read
from tests.api.test_fetch import OUT_OF_RANGE, fetch
from tests.api.test_produce import TOO_LARGE, everything, put
from tests.support.admin import create_topic
from tests.support.polling import until
from tests.support.processes import run
from tests.support.servers import Broker

UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_CONFIG, INVALID_REQUEST, INVALID_RECORD = 3, 17, 40, 42, 87
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, CLIENT_METRICS = 2, 4, 16
# append.lead.max.ms: how far an entry may be ahead of the clock.
LEAD_MS = 1_000
OFFSETS_TOPIC = "__consumer_offsets"


def resource(name, *configs, resource_type=TOPIC):
    """`configs` are (name, operation, value), or (name, value) for AlterConfigs."""
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "configs": [
            {"name": config[0], "config_operation": config[1], "value": config[-1]} for config in configs
        ],
    }


def increment(ask, *resources, version=1, validate_only=False):
    fields = {"resources": [*resources], "validate_only": validate_only}
    return answers(ask("IncrementalAlterConfigs", version, **fields), resources)


def replace(ask, *resources, version=2, validate_only=False):
    fields = {"resources": [*resources], "validate_only": validate_only}
    return answers(ask("AlterConfigs", version, **fields), resources)


def answers(response, resources):
    """Returns (error, message) of every resource."""
    named = [(each.resource_type, each.resource_name) for each in response.responses]
    assert named == [(each["resource_type"], each["resource_name"]) for each in resources]
    return [(int(each.error_code), each.error_message) for each in response.responses]


def alter(ask, name, *configs, version=1):
    """Alter one topic's configs, which must succeed."""
    assert increment(ask, resource(name, *configs), version=version) == [(0, None)]


def refusal(ask, name, *configs, version=1, resource_type=TOPIC, way=increment):
    """Returns the error of one resource, which must have a message. `validate_only` returns the same."""
    asked = resource(name, *configs, resource_type=resource_type)
    ((error, message),) = way(ask, asked, version=version)
    assert message
    assert way(ask, asked, version=version, validate_only=True) == [(error, message)]
    return error, message


def configs_of(ask, name):
    """Returns the configs that a topic sets."""
    asked = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
    (result,) = ask("DescribeConfigs", 4, resources=[asked]).results
    assert result.error_code == 0
    return {config.name: config.value for config in result.configs if config.config_source == 1}


def timestamps(part):
    """Returns the timestamps of all fetched records, in ms."""
    found = []
    batches = MemoryRecords(part.records)
    while batches.has_next():
        found += [record.timestamp for record in batches.next_batch()]
    return found


def settled(ask, name, expected):
    """Wait for a change: on a real Kafka, brokers follow the controller."""
    until(lambda: configs_of(ask, name) == expected, 10, f"configs {expected}")


@versions("IncrementalAlterConfigs")
def test_setting_and_deleting(ask, new_topic, version):
    name = new_topic(1, {"retention.bytes": "7"})
    alter(ask, name, ("retention.ms", SET, " 5000 "), ("segment.ms", SET, "6"), version=version)
    settled(ask, name, {"retention.bytes": "7", "retention.ms": "5000", "segment.ms": "6"})
    alter(ask, name, ("retention.ms", DELETE, None), ("segment.ms", DELETE, "7"), version=version)
    settled(ask, name, {"retention.bytes": "7"})
    alter(ask, name, version=version)
    alter(ask, name, ("retention.ms", DELETE, None), ("no.such.config", DELETE, None), version=version)
    settled(ask, name, {"retention.bytes": "7"})


@versions("IncrementalAlterConfigs")
def test_lists(ask, topic, version):
    policy = "cleanup.policy"
    for operation, value, expected in [
        (APPEND, "compact", "delete,compact"),  # the list begins with the default
        (APPEND, "compact,delete", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete,nothing", "compact"),
        (APPEND, "delete", "compact,delete"),
        (SUBTRACT, "compact,delete", ""),
        (SET, "compact,compact", "compact"),  # a repetition is no error (KIP-1161)
    ]:
        alter(ask, topic, (policy, operation, value), version=version)
        settled(ask, topic, {policy: expected})
    assert refusal(ask, topic, (policy, APPEND, "shred"), version=version)[0] == INVALID_CONFIG
    assert refusal(ask, topic, (policy, APPEND, ""), version=version)[0] == INVALID_CONFIG
    settled(ask, topic, {policy: "compact"})


@versions("IncrementalAlterConfigs")
@pytest.mark.parametrize(
    ("configs", "error", "said"),
    [
        ([("no.such.config", SET, "1")], INVALID_CONFIG, "Unknown topic config name: no.such.config"),
        ([("no.such.config", APPEND, "1")], INVALID_CONFIG, "Can't APPEND to key no.such.config"),
        (
            [("retention.ms", SET, "soon")],
            INVALID_CONFIG,
            "Invalid value soon for configuration retention.ms",
        ),
        ([("retention.ms", SET, "-2")], INVALID_CONFIG, "Invalid value -2 for configuration retention.ms"),
        ([("retention.ms", SET, "")], INVALID_CONFIG, "retention.ms"),
        ([("retention.ms", SET, None)], INVALID_REQUEST, "Null value not supported for : retention.ms"),
        ([("no.such.config", SET, None)], INVALID_REQUEST, "Null value not supported for : no.such.config"),
        ([("cleanup.policy", APPEND, None)], INVALID_REQUEST, "Null value not supported"),
        ([("cleanup.policy", SUBTRACT, None)], INVALID_REQUEST, "Null value not supported"),
        ([("retention.ms", APPEND, "5")], INVALID_CONFIG, "its type is not LIST"),
        ([("retention.ms", SUBTRACT, "5")], INVALID_CONFIG, "Can't SUBTRACT to key retention.ms"),
        ([("retention.ms", SET, "5"), ("retention.ms", SET, "5")], INVALID_REQUEST, "duplicate config keys"),
        ([("retention.ms", SET, "5"), ("retention.ms", DELETE, None)], INVALID_REQUEST, "duplicate"),
        ([("retention.ms", SET, "5"), ("segment.ms", SET, "x")], INVALID_CONFIG, "segment.ms"),
        (
            [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")],
            INVALID_CONFIG,
            "min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
    ],
)
def test_changes_that_cannot_be(ask, new_topic, version, configs, error, said):
    name = new_topic(1, {"retention.ms": "77"})
    found, message = refusal(ask, name, *configs, version=version)
    assert found == error
    assert said in message
    assert configs_of(ask, name) == {"retention.ms": "77"}


@versions("IncrementalAlterConfigs")
def test_operations_that_nobody_knows(ask, korvet, topic, version):
    for operation in (-1, 4, 99):
        assert refusal(ask, topic, ("retention.ms", operation, "5"), version=version)[0] == INVALID_REQUEST


WAYS = [
    *(pytest.param(increment, version, id=f"IncrementalAlterConfigs-v{version}") for version in (0, 1)),
    *(pytest.param(replace, version, id=f"AlterConfigs-v{version}") for version in (0, 1, 2)),
]
both_ways = pytest.mark.parametrize(("way", "version"), WAYS)


@both_ways
def test_topics_that_are_not_there(ask, fresh, way, version):
    name = fresh("never")
    good, bad = ("retention.ms", SET, "5"), ("retention.ms", SET, "soon")
    for configs, error in [([], UNKNOWN_TOPIC), ([good], UNKNOWN_TOPIC), ([bad], INVALID_CONFIG)]:
        assert refusal(ask, name, *configs, version=version, way=way)[0] == error
    assert refusal(ask, "a b", good, version=version, way=way)[0] == INVALID_TOPIC
    assert refusal(ask, "", good, version=version, way=way)[0] == INVALID_REQUEST


@both_ways
def test_resources_of_unknown_types(ask, korvet, way, version):
    for resource_type in (CLIENT_METRICS, 0, 1, 99, -1):
        for configs in ([], [("retention.ms", SET, "5")]):
            error, message = refusal(
                ask, "1", *configs, version=version, resource_type=resource_type, way=way
            )
            assert error == INVALID_REQUEST
            assert "esource type" in message


@both_ways
def test_a_resource_given_twice_is_refused_twice(ask, korvet, new_topic, way, version):
    twice, once = new_topic(), new_topic()
    config = ("retention.ms", SET, "5")
    results = way(ask, resource(twice, config), resource(once, config), resource(twice), version=version)
    refused = (INVALID_REQUEST, "Each resource must appear at most once.")
    assert results == [refused, (0, None), refused]
    settled(ask, once, {"retention.ms": "5"})
    assert configs_of(ask, twice) == {}
    # The same name with another type is another resource.
    results = way(ask, resource(once, config), resource(once, config, resource_type=BROKER), version=version)
    assert [error for error, _ in results] == [0, INVALID_REQUEST]  # it is no broker's id


@both_ways
def test_one_refused_resource_does_not_keep_the_others(ask, new_topic, fresh, way, version):
    names = [new_topic(), fresh("never"), new_topic()]
    results = way(ask, *(resource(name, ("retention.ms", SET, "5")) for name in names), version=version)
    assert [error for error, _ in results] == [0, UNKNOWN_TOPIC, 0]
    for name in (names[0], names[2]):
        settled(ask, name, {"retention.ms": "5"})


@both_ways
def test_only_validating_changes_nothing(ask, new_topic, way, version):
    name = new_topic(1, {"retention.ms": "77"})
    asked = resource(name, ("retention.ms", SET, "5"))
    assert way(ask, asked, version=version, validate_only=True) == [(0, None)]
    assert configs_of(ask, name) == {"retention.ms": "77"}


@both_ways
def test_nothing_asked_is_nothing_answered(ask, way, version):
    assert way(ask, version=version) == []


@both_ways
def test_errors_that_repeat_very_long_texts(ask, topic, way, version):
    long = "x" * 32_000
    for config in ((long, SET, "1"), ("retention.ms", SET, long)):
        assert refusal(ask, topic, config, version=version, way=way)[0] == INVALID_CONFIG


@versions("AlterConfigs")
def test_replacing_all_configs(ask, new_topic, version):
    name = new_topic(1, {"retention.bytes": "7", "segment.ms": "8"})
    asked = resource(name, ("retention.ms", "5"), ("segment.ms", "9"))
    assert replace(ask, asked, version=version) == [(0, None)]
    settled(ask, name, {"retention.ms": "5", "segment.ms": "9"})
    for configs, error in [
        ([("no.such.config", "1")], INVALID_CONFIG),
        ([("retention.ms", "soon")], INVALID_CONFIG),
        ([("retention.ms", None)], INVALID_REQUEST),
        ([("retention.ms", "5"), ("retention.ms", "5")], INVALID_REQUEST),
        ([("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")], INVALID_CONFIG),
    ]:
        assert refusal(ask, name, *configs, version=version, way=replace)[0] == error
    assert configs_of(ask, name) == {"retention.ms": "5", "segment.ms": "9"}
    assert replace(ask, resource(name), version=version) == [(0, None)]
    settled(ask, name, {})


@pytest.mark.parametrize(("own", "other"), [("clock", "dense"), ("dense", "clock"), (None, "dense")])
def test_the_offset_assignment_is_fixed(ask, korvet, new_topic, own, other):
    key = "offset.assignment"
    name = new_topic(1, {} if own is None else {key: own})
    before = configs_of(ask, name)
    for way in (increment, replace):
        error, message = refusal(ask, name, (key, SET, other), way=way)
        assert error == INVALID_CONFIG
        assert "can't be changed" in message
        assert way(ask, resource(name, (key, SET, own or "clock"))) == [(0, None)]
    if own == "dense":
        assert refusal(ask, name, (key, DELETE, None))[0] == INVALID_CONFIG
    # A tool that replaces all configs needn't know this one.
    assert replace(ask, resource(name, ("retention.ms", "5"))) == [(0, None)]
    assert configs_of(ask, name) == before | {key: own or "clock", "retention.ms": "5"}
    assert put(ask, name, batch()).error_code == 0


def test_the_offsets_topic_stays_compacted(ask, korvet, group):
    until(lambda: ask("FindCoordinator", 1, key=group, key_type=0).error_code == 0, 20, "a coordinator")
    policy = "cleanup.policy"
    for changes in (
        [(policy, SET, "delete")],
        [(policy, SET, "compact,delete")],
        [(policy, APPEND, "delete")],
        [(policy, SUBTRACT, "compact")],
    ):
        error, message = refusal(ask, OFFSETS_TOPIC, *changes)
        assert error == INVALID_CONFIG
        assert "must stay compact" in message
    assert refusal(ask, OFFSETS_TOPIC, (policy, "delete"), way=replace)[0] == INVALID_CONFIG
    assert refusal(ask, OFFSETS_TOPIC, ("offset.assignment", SET, "clock"))[0] == INVALID_CONFIG
    kept = {policy: "compact", "offset.assignment": "dense"}
    # A reset restores the configs that Kafka creates the topic with, because the defaults would lose commits.
    alter(ask, OFFSETS_TOPIC, ("segment.ms", SET, "12345"), (policy, DELETE, None))
    assert configs_of(ask, OFFSETS_TOPIC).items() >= {**kept, "segment.ms": "12345"}.items()
    for configs in ([], [(policy, "compact")]):
        assert replace(ask, resource(OFFSETS_TOPIC, *configs)) == [(0, None)]
        assert configs_of(ask, OFFSETS_TOPIC) == kept


def test_the_largest_batch_changes_at_once(ask, topic):
    records = batch([(b"k", b"v" * 2000)])
    assert put(ask, topic, records).error_code == 0
    alter(ask, topic, ("max.message.bytes", SET, "1000"))
    until(lambda: put(ask, topic, records).error_code == TOO_LARGE, 10, "the limit is in force")
    alter(ask, topic, ("max.message.bytes", DELETE, None))
    until(lambda: put(ask, topic, records).error_code == 0, 10, "the limit is gone")


def test_what_is_too_large_when_it_is_answered(ask, korvet, topic):
    """Without waits, which only a cluster needs."""
    records = batch([(b"k", b"v" * 2000)])
    for limit, error in [("1000", TOO_LARGE), ("3000", 0), ("500", TOO_LARGE), ("1000000", 0)]:
        alter(ask, topic, ("max.message.bytes", SET, limit))
        assert put(ask, topic, records).error_code == error


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_the_timestamp_type_changes_at_once(ask, korvet, new_topic, assignment):
    name = new_topic(1, {"offset.assignment": assignment})
    old_ms = now_ms() - 3_600_000
    assert put(ask, name, batch(timestamp_ms=old_ms)).log_append_time is None
    (part,) = fetch(ask, 11, (name, 0, 0))
    assert timestamps(part) == [old_ms]
    before_ms = now_ms()
    alter(ask, name, ("message.timestamp.type", SET, "LogAppendTime"))
    result = put(ask, name, batch(timestamp_ms=old_ms))
    assert result.log_append_time is not None
    (part,) = fetch(ask, 11, (name, 0, result.base_offset))
    (found_ms,) = timestamps(part)
    # The estimate of Redis's clock may be slightly late.
    assert before_ms - 1000 <= found_ms <= now_ms() + LEAD_MS
    if assignment == "clock":
        assert found_ms == unpack(result.base_offset)[0]
    alter(ask, name, ("message.timestamp.type", DELETE, None))
    result = put(ask, name, batch(timestamp_ms=old_ms))
    assert result.log_append_time is None
    (part,) = fetch(ask, 11, (name, 0, result.base_offset))
    assert timestamps(part) == [old_ms]


def test_the_native_format_changes_at_once(ask, korvet, topic):
    korvet.redis.xadd(f"korvet:{topic}:0", {"body": "hello", "n": "1"})

    def value():
        (part,) = fetch(ask, 11, (topic, 0, 0))
        ((_, _, found),) = read(part.records)
        return found

    until(lambda: json.loads(value()) == {"body": "hello", "n": "1"}, 10, "JSON")
    alter(ask, topic, ("native.format", SET, "field:body"))
    assert value() == b"hello"
    alter(ask, topic, ("native.format", DELETE, None))
    assert json.loads(value()) == {"body": "hello", "n": "1"}


def test_compaction_can_be_switched_on_later(ask, topic):
    assert put(ask, topic, batch([(None, b"keyless")])).error_code == 0
    alter(ask, topic, ("cleanup.policy", SET, "compact"))
    assert put(ask, topic, batch([(None, b"keyless")])).error_code == INVALID_RECORD
    assert put(ask, topic, batch([(b"new", b"v")])).error_code == 0
    # The first one may be deleted already.
    assert everything(ask, topic)[-1][1:] == (b"new", b"v")


@pytest.fixture
def hasty(own_korvet):
    """A server that applies retention continuously."""
    server = own_korvet("--set", "log.retention.check.interval.ms=100")
    return Broker(server.host, server.port, server)


def test_retention_changes_while_the_server_runs(hasty, fresh):
    name = fresh("kept")
    create_topic(hasty.bootstrap, name, 1)
    with connect(hasty) as client:
        for _ in range(3):
            put(client, name, batch(timestamp_ms=now_ms() - 60_000))
        assert len(everything(client, name)) == 3
        alter(client, name, ("retention.ms", SET, "1000"))
        until(lambda: emptied(client, name), 20, "old records are deleted")


def emptied(ask, name):
    (part,) = fetch(ask, 11, (name, 0, 0))
    return (part.error_code, part.log_start_offset) == (OUT_OF_RANGE, part.high_watermark)


def test_changes_at_the_same_time_are_all_kept(ask, korvet, another, topic):
    names = ["retention.ms", "retention.bytes", "segment.ms", "flush.ms", "segment.jitter.ms"]
    clients = {name: another() for name in names}
    failed: list[BaseException] = []

    def change(name):
        try:
            for value in range(1, 31):
                alter(clients[name], topic, (name, SET, str(value)))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=change, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert configs_of(ask, topic) == dict.fromkeys(names, "30")


def test_what_somebody_else_changed_in_redis_is_not_lost(ask, korvet, topic):
    """If compare-and-set fails, the alteration is repeated on the present configs."""
    key = "{korvet}:topics"
    stored = json.loads(korvet.redis.hget(key, topic))
    stored["configs"]["max.message.bytes"] = "1000"
    korvet.redis.hset(key, topic, json.dumps(stored))
    alter(ask, topic, ("retention.ms", SET, "5"))
    assert configs_of(ask, topic) == {"max.message.bytes": "1000", "retention.ms": "5"}
    assert put(ask, topic, batch([(b"k", b"v" * 2000)])).error_code == TOO_LARGE
    korvet.redis.hdel(key, topic)
    ((error, _),) = increment(ask, resource(topic, ("retention.ms", SET, "6")))
    assert error == UNKNOWN_TOPIC


def test_changes_outlive_the_server(own_korvet, fresh):
    server = own_korvet()
    name = fresh("kept")
    create_topic(server.bootstrap, name, 1)
    with connect(server) as client:
        alter(client, name, ("retention.ms", SET, "12345"))
    server.kill_both()
    server.restart()
    with connect(server) as client:
        assert configs_of(client, name) == {"retention.ms": "12345"}


def test_the_topics_alter_command(ask, broker, new_topic, korvet):
    name = new_topic(1, {"retention.bytes": "7"})

    def korvet_topics(*options):
        command = [sys.executable, "-m", "korvet", "topics", "alter", name, *options]
        done = run([*command, "--bootstrap-server", broker.bootstrap], 60)
        return done.returncode, done.stdout.decode() + done.stderr.decode()

    options = ("-c", "retention.ms=5", "--config", "cleanup.policy=compact,delete")
    assert korvet_topics(*options, "--unset", "retention.bytes") == (0, f"changed {name}\n")
    assert configs_of(ask, name) == {"retention.ms": "5", "cleanup.policy": "compact,delete"}
    status, text = korvet_topics("-c", "retention.ms=soon")
    assert status == 1
    assert "Invalid value soon for configuration retention.ms" in text
    status, text = korvet_topics("-c", "offset.assignment=dense")
    assert status == 1
    assert "can't be changed" in text
    assert configs_of(ask, name) == {"retention.ms": "5", "cleanup.policy": "compact,delete"}

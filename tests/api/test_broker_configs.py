"""Dynamic configs of brokers, and levels of their loggers: Kafka's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.api.asking import Client, connect, versions
from tests.api.batches import batch
from tests.api.test_produce import put
from tests.support.kafka_dynamic import KAFKA_DYNAMIC
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

INVALID_CONFIG, INVALID_REQUEST = 40, 42
SET, DELETE, APPEND, SUBTRACT = range(4)
BROKER, LOGGER = 4, 8
DYNAMIC, CLUSTER, STATIC, DEFAULT, LEVEL = 2, 3, 4, 5, 6
ALL = ""
OWN = "1"
RETENTION, POLICY = "log.retention.ms", "log.cleanup.policy"
NOT_DYNAMIC = "Cannot update these configs dynamically: [{}]"
BY_LISTENER = (
    "These security configs can be dynamically updated only per-listener using the listener prefix: [{}]"
)
NOT_FOR_LOGGERS = "{} is not allowed for the BROKER_LOGGER resource"
INVALID = "Invalid value {} for configuration {}: {}"
OF_ONE = "Cannot update these configs at default cluster level, broker id must be specified: [{}]"


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with KorvetServer("--set=log.retention.bytes=1000000") as server:
        yield server


@pytest.fixture
def client(server: KorvetServer) -> Iterator[Client]:
    with connect(server) as asking:
        yield asking
    # The test may have restarted the server.
    with connect(server) as asking:
        for name in (ALL, OWN):
            assert replace(asking, name) == (0, None)


def increment(
    client: Client, name: str, *changes: Any, kind: int = BROKER, version: int = 1, **more: Any
) -> Any:
    """Changes are (name, operation, value)."""
    configs = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
    wanted = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    fields = {"resources": wanted, "validate_only": False} | more
    (answer,) = client("IncrementalAlterConfigs", version, **fields).responses
    return int(answer.error_code), answer.error_message


def replace(client: Client, name: str, *configs: Any, kind: int = BROKER, version: int = 2) -> Any:
    """Configs are (name, value)."""
    given = [{"name": key, "value": value} for key, value in configs]
    wanted = [{"resource_type": kind, "resource_name": name, "configs": given}]
    (answer,) = client("AlterConfigs", version, resources=wanted, validate_only=False).responses
    return int(answer.error_code), answer.error_message


def described(client: Client, name: str, *keys: str, kind: int = BROKER) -> dict[str, Any]:
    """By config: value, source and synonyms."""
    wanted = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}]
    (result,) = client("DescribeConfigs", 4, resources=wanted, include_synonyms=True).results
    assert result.error_code == 0
    return {
        config.name: (
            config.value,
            int(config.config_source),
            [(one.name, one.value, int(one.source)) for one in config.synonyms],
        )
        for config in result.configs
    }


def described_config(client: Client, name: str, key: str) -> Any:
    wanted = [{"resource_type": BROKER, "resource_name": name, "configuration_keys": [key]}]
    (result,) = client("DescribeConfigs", 4, resources=wanted, include_documentation=True).results
    return result.configs[0]


@versions("IncrementalAlterConfigs")
def test_a_broker_precedes_the_cluster_which_precedes_the_file(client, version):
    key = "log.retention.bytes"
    below = [(key, "1000000", STATIC), (key, "-1", DEFAULT)]
    assert described(client, OWN, key)[key] == ("1000000", STATIC, below)
    assert increment(client, ALL, (key, SET, " 2000 "), version=version) == (0, None)
    cluster = (key, "2000", CLUSTER)
    assert described(client, OWN, key)[key] == ("2000", CLUSTER, [cluster, *below])
    assert described(client, ALL) == {key: ("2000", CLUSTER, [cluster])}
    assert increment(client, OWN, (key, SET, "3000"), version=version) == (0, None)
    assert described(client, OWN, key)[key] == ("3000", DYNAMIC, [(key, "3000", DYNAMIC), cluster, *below])
    assert increment(client, ALL, (key, DELETE, None), version=version) == (0, None)
    assert described(client, OWN, key)[key] == ("3000", DYNAMIC, [(key, "3000", DYNAMIC), *below])
    assert described(client, ALL) == {}
    assert increment(client, OWN, (key, DELETE, None), version=version) == (0, None)
    assert described(client, OWN, key)[key] == ("1000000", STATIC, below)


@versions("AlterConfigs")
def test_all_dynamic_configs_are_replaced(client, version):
    assert increment(client, OWN, (RETENTION, SET, "5000"), (POLICY, SET, "compact")) == (0, None)
    assert replace(client, OWN, (RETENTION, " 6000 "), version=version) == (0, None)
    shown = described(client, OWN, RETENTION, POLICY)
    assert {key: each[:2] for key, each in shown.items()} == {
        RETENTION: ("6000", DYNAMIC),
        POLICY: ("delete", DEFAULT),
    }


def test_only_validating_changes_nothing(client):
    for name in (ALL, OWN):
        assert increment(client, name, (RETENTION, SET, "5000"), validate_only=True) == (0, None)
    assert described(client, OWN, RETENTION)[RETENTION][1] == DEFAULT


def test_lists_begin_with_the_default(client):
    """Kafka starts from the default, not from the value in force."""
    assert increment(client, ALL, (POLICY, APPEND, "compact")) == (0, None)
    assert described(client, ALL)[POLICY][0] == "delete,compact"
    assert increment(client, OWN, (POLICY, SUBTRACT, "delete")) == (0, None)
    assert described(client, OWN, POLICY)[POLICY][:2] == ("", DYNAMIC)
    assert increment(client, ALL, (POLICY, APPEND, "compact"), (RETENTION, APPEND, "5")) == (
        INVALID_CONFIG,
        f"Config value append is not allowed for config key: {RETENTION}",
    )
    assert described(client, ALL).keys() == {POLICY}


# As Apache Kafka 4.4 answers; without a message, the words differ.
@pytest.mark.parametrize("name", [ALL, OWN])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("num.partitions", SET, "3"), INVALID_REQUEST, NOT_DYNAMIC.format("num.partitions")),
        (("log.cleaner.enable", SET, "false"), INVALID_REQUEST, NOT_DYNAMIC.format("log.cleaner.enable")),
        (
            ("connections.max.idle.ms", SET, "5"),
            INVALID_REQUEST,
            NOT_DYNAMIC.format("connections.max.idle.ms"),
        ),
        (("ssl.keystore.location", SET, "/x"), INVALID_REQUEST, BY_LISTENER.format("ssl.keystore.location")),
        (("no.such", SET, "3"), 0, None),
        (("no.such", DELETE, None), 0, None),
        (("num.partitions", DELETE, None), 0, None),
        (("no.such", APPEND, "3"), INVALID_CONFIG, "Unknown config name: no.such"),
        (
            (RETENTION, SET, "soon"),
            INVALID_REQUEST,
            f"Invalid value soon for configuration {RETENTION}: Not a number of type LONG",
        ),
        ((RETENTION, SET, ""), INVALID_REQUEST, INVALID.format("", RETENTION, "Not a number of type LONG")),
        ((RETENTION, SET, None), INVALID_REQUEST, f"Null value not supported for : {RETENTION}"),
        (
            (RETENTION, APPEND, "1"),
            INVALID_CONFIG,
            f"Config value append is not allowed for config key: {RETENTION}",
        ),
        (
            ("max.connections", SET, "99999999999"),
            INVALID_REQUEST,
            "Invalid value 99999999999 for configuration max.connections: Not a number of type INT",
        ),
        (("max.connections", SET, "0"), INVALID_REQUEST, None),
        (("max.connection.creation.rate", SET, "0"), INVALID_REQUEST, None),
        (("max.connections.per.ip.overrides", SET, "127.0.0.1:50"), 0, None),
        (("max.connections.per.ip.overrides", SET, "bogus"), INVALID_REQUEST, None),
        (
            ("min.insync.replicas", SET, "0"),
            INVALID_REQUEST,
            INVALID.format("0", "min.insync.replicas", "Value must be at least 1"),
        ),
        ((POLICY, SET, "shred"), INVALID_REQUEST, None),
        ((POLICY, SET, ""), 0, None),
        ((RETENTION, 9, "1"), INVALID_REQUEST, None),
        (("listener.name.nosuch.max.connections", SET, "5"), 0, None),
        (("listener.name.plaintext.max.connections", SET, "5"), 0, None),
    ],
)
def test_single_changes(client, name, change, error, message):
    found = increment(client, name, change, validate_only=True)
    assert found[0] == error
    assert found[1] == message if message or not error else found[1]
    assert described(client, ALL) == {}


def test_some_configs_are_of_one_broker_only(client):
    for key in ("listener.name.plaintext.ssl.keystore.location", "sasl.enabled.mechanisms"):
        change = (key, SET, "PLAIN")
        assert increment(client, ALL, change) == (INVALID_REQUEST, OF_ONE.format(key))
        assert increment(client, OWN, change, validate_only=True) == (0, None)


def test_a_wrong_change_keeps_the_right_ones_from_being_made(client):
    for wrong in (("num.partitions", SET, "3"), ("max.connections", SET, "x"), ("no.such", APPEND, "1")):
        assert increment(client, OWN, (RETENTION, SET, "5000"), wrong)[0] != 0
        assert described(client, OWN, RETENTION)[RETENTION][1] == DEFAULT
    changes = [("num.partitions", SET, "3"), ("listeners", SET, "x"), ("no.such", SET, "3")]
    assert increment(client, OWN, *changes) == (
        INVALID_REQUEST,
        NOT_DYNAMIC.format("num.partitions, listeners"),
    )
    twice = [(RETENTION, SET, "5000"), (RETENTION, DELETE, None)]
    assert increment(client, OWN, *twice) == (INVALID_REQUEST, "Error due to duplicate config keys")


def test_values_that_contradict_each_other(client):
    error, message = increment(client, ALL, ("group.min.session.timeout.ms", SET, "2000000"))
    assert error == INVALID_REQUEST
    assert "above group.max.session.timeout.ms" in message
    assert described(client, ALL) == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("77", "Unexpected broker id, expected 1, but received 77"),
        ("-1", "Unexpected broker id, expected 1, but received -1"),
        ("x", "Node id must be an integer, but it is: x"),
        (" 1", "Node id must be an integer, but it is:  1"),
    ],
)
def test_other_brokers(client, name, message):
    for changes in ([], [(RETENTION, SET, "5000")], [("num.partitions", SET, "1")]):
        assert increment(client, name, *changes) == (INVALID_REQUEST, message)
    assert replace(client, name, (RETENTION, "5000")) == (INVALID_REQUEST, message)
    wanted = [{"resource_type": BROKER, "resource_name": name}]
    (result,) = client("DescribeConfigs", 4, resources=wanted).results
    described_as = message.replace("1, but", "1 or empty string, but").replace("Node", "Broker")
    assert (int(result.error_code), result.error_message) == (INVALID_REQUEST, described_as)
    assert increment(client, "01") == (0, None)


def test_names_that_korvet_does_not_have_are_kept_and_hidden(client):
    listener = "listener.name.plaintext.max.connections"
    changes = [("no.such", SET, "v"), (listener, SET, "77")]
    assert increment(client, OWN, *changes) == (0, None)
    assert increment(client, ALL, ("no.such", SET, "w")) == (0, None)
    shown = described(client, OWN)
    assert shown["no.such"] == (None, DYNAMIC, [("no.such", None, DYNAMIC), ("no.such", None, CLUSTER)])
    most = ("max.connections", "2147483647", DEFAULT)
    assert shown[listener] == ("77", DYNAMIC, [(listener, "77", DYNAMIC), most])
    hidden = described_config(client, OWN, "no.such")
    assert (hidden.is_sensitive, hidden.read_only, hidden.config_type) == (True, True, 0)
    assert described(client, ALL) == {"no.such": (None, CLUSTER, [("no.such", None, CLUSTER)])}


def test_types_documentation_and_read_only_flags(client):
    for key, kind, read_only, sensitive in [
        (RETENTION, 5, False, False),
        ("max.connections", 3, False, False),
        (POLICY, 7, False, False),
        ("log.cleaner.min.cleanable.ratio", 6, False, False),
        ("num.partitions", 3, True, False),
        ("auto.create.topics.enable", 1, True, False),
        ("ssl.key.password", 9, False, True),
        ("ssl.keystore.location", 2, False, False),
    ]:
        config = described_config(client, OWN, key)
        assert (config.config_type, config.read_only, config.is_sensitive) == (kind, read_only, sensitive)
        assert config.documentation


def test_topics_show_the_brokers_values(client):
    name = "shown"
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
    assert client("CreateTopics", 7, topics=topics, timeout=5000).topics[0].error_code == 0
    assert increment(client, ALL, (RETENTION, SET, "7000")) == (0, None)
    assert increment(client, OWN, (RETENTION, SET, "8000")) == (0, None)
    assert described(client, name, "retention.ms", kind=2)["retention.ms"] == (
        "8000",
        DYNAMIC,
        [(RETENTION, "8000", DYNAMIC), (RETENTION, "7000", CLUSTER), (RETENTION, "604800000", DEFAULT)],
    )


def test_configs_survive_a_restart(server, client):
    assert increment(client, ALL, (RETENTION, SET, "5000"), ("no.such", SET, "1")) == (0, None)
    assert increment(client, OWN, ("max.connections.per.ip", SET, "50")) == (0, None)
    assert server.stop() == 0
    server.restart()
    with connect(server) as asking:
        assert described(asking, OWN, RETENTION)[RETENTION][:2] == ("5000", CLUSTER)
        assert described(asking, OWN, "max.connections.per.ip")["max.connections.per.ip"][0] == "50"
        assert described(asking, ALL).keys() == {RETENTION, "no.such"}


def test_damaged_values_in_redis_have_no_effect(server, client):
    """The other values stay in force."""
    key = "{korvet}:broker.configs"
    try:
        fields = {
            '["","log.retention.ms"]': "soon",
            '["1","log.retention.bytes"]': "4000",
            "garbage": "1",
            '["x","log.retention.ms"]': "1",
            '["1","num.partitions"]': "7",
        }
        server.redis.hset(key, mapping=fields)
        server.redis.hincrby("{korvet}:cluster", "security", 1)
        bytes_key = "log.retention.bytes"
        until(lambda: described(client, OWN, bytes_key)[bytes_key][0] == "4000", 10, "the value")
        topics = [{"name": "damaged", "num_partitions": -1, "replication_factor": -1}]
        (made,) = client("CreateTopics", 7, topics=topics, timeout=5000).topics
        assert (made.error_code, made.num_partitions) == (0, 1)
        until(lambda: "some dynamic settings have no effect" in server.tail(), 10, "the log line")
        # Topics use the default.
        assert described(client, "damaged", "retention.ms", kind=2)["retention.ms"][0] == "604800000"
        assert put(client, "damaged", batch()).error_code == 0
        assert described(client, ALL)[RETENTION][0] == "soon"
    finally:
        server.redis.delete(key)
        server.redis.hincrby("{korvet}:cluster", "security", 1)


# Loggers


def level(client: Client, name: str) -> Any:
    return described(client, OWN, name, kind=LOGGER)[name]


@versions("IncrementalAlterConfigs")
def test_levels_of_loggers(client, version):
    name, parent = "korvet.server.connections", "korvet.server"
    assert level(client, name) == ("INFO", LEVEL, [])
    for wanted in ("TRACE", "DEBUG", "WARN", "ERROR", "FATAL"):
        assert increment(client, OWN, (name, SET, wanted), kind=LOGGER, version=version) == (0, None)
        assert level(client, name)[0] == wanted
    assert increment(client, OWN, (name, DELETE, None), (parent, SET, "WARN"), kind=LOGGER) == (0, None)
    assert (level(client, name)[0], level(client, "root")[0]) == ("WARN", "INFO")
    assert increment(client, OWN, (parent, DELETE, None), ("root", SET, "ERROR"), kind=LOGGER) == (0, None)
    assert level(client, name)[0] == "ERROR"
    assert increment(client, OWN, ("root", SET, "INFO"), kind=LOGGER) == (0, None)


def test_a_level_takes_effect(server, client):
    name = "korvet.server.connections"
    assert increment(client, OWN, (name, SET, "DEBUG"), kind=LOGGER) == (0, None)
    # The second change is about the cluster: the root logger follows the setting.
    assert increment(client, ALL, ("log_level", SET, "error")) == (0, None)
    assert (level(client, "root")[0], level(client, name)[0]) == ("ERROR", "DEBUG")
    assert increment(client, ALL, ("log_level", DELETE, None)) == (0, None)
    assert level(client, "root")[0] == "INFO"
    assert increment(client, OWN, (name, DELETE, None), kind=LOGGER) == (0, None)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("korvet.server", SET, "DEBUG"), 0, None),
        (
            ("korvet.server", SET, "debug"),
            INVALID_CONFIG,
            "Cannot set the log level of korvet.server to debug as it is not a supported log level. "
            "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
        (("korvet.server", SET, "OFF"), INVALID_CONFIG, None),
        (("korvet.server", SET, None), INVALID_REQUEST, "Null value not supported for : korvet.server"),
        (("no.such", SET, "INFO"), INVALID_CONFIG, "Logger no.such does not exist!"),
        (("no.such", DELETE, None), INVALID_CONFIG, "Logger no.such does not exist!"),
        (("root", DELETE, None), INVALID_REQUEST, "Removing the log level of the root logger is not allowed"),
        (("korvet.server", APPEND, "INFO"), INVALID_REQUEST, NOT_FOR_LOGGERS.format("APPEND operation")),
        (("korvet.server", SUBTRACT, "INFO"), INVALID_REQUEST, NOT_FOR_LOGGERS.format("SUBTRACT operation")),
        (("korvet.server", 7, "INFO"), INVALID_REQUEST, NOT_FOR_LOGGERS.format("Unknown operation type 7")),
    ],
)
def test_changes_of_levels(client, change, error, message):
    found = increment(client, OWN, change, kind=LOGGER, validate_only=True)
    assert found[0] == error
    assert message is None or found[1] == message
    mixed = increment(
        client, OWN, ("korvet.server.tls", SET, "TRACE"), change, kind=LOGGER, validate_only=False
    )
    assert mixed[0] == error
    assert level(client, "korvet.server.tls")[0] == ("INFO" if error else "TRACE")
    for name in ("korvet.server.tls", "korvet.server"):
        assert increment(client, OWN, (name, DELETE, None), kind=LOGGER) == (0, None)


@pytest.mark.parametrize(
    ("name", "message", "describing"),
    [
        ("", "Node id must be an integer, but it is: ", "Broker id must not be empty"),
        ("x", "Node id must be an integer, but it is: x", "Broker id must be an integer, but it is: x"),
        (
            "77",
            "Unexpected node id. Expected 1, but received 77",
            "Unexpected broker id, expected 1 but received 77",
        ),
    ],
)
def test_loggers_of_other_brokers(client, name, message, describing):
    assert increment(client, name, ("root", SET, "INFO"), kind=LOGGER) == (INVALID_REQUEST, message)
    wanted = [{"resource_type": LOGGER, "resource_name": name}]
    (result,) = client("DescribeConfigs", 4, resources=wanted).results
    assert (int(result.error_code), result.error_message) == (INVALID_REQUEST, describing)


def test_alter_configs_has_no_loggers(client):
    for name in (ALL, OWN):
        assert replace(client, name, ("root", "INFO"), kind=LOGGER) == (
            INVALID_REQUEST,
            "Unknown resource type 8",
        )


def test_the_dynamic_settings_of_kafka(ask, broker):
    """What korvet takes for Kafka's dynamic and static settings, on a real Kafka."""
    wanted = [{"resource_type": BROKER, "resource_name": OWN, "configuration_keys": None}]
    (result,) = ask("DescribeConfigs", 4, resources=wanted).results
    read_only = {config.name: config.read_only for config in result.configs}
    if broker.korvet is None:
        assert {name for name, fixed in read_only.items() if not fixed} == KAFKA_DYNAMIC
    else:
        fixed = {name for name in KAFKA_DYNAMIC & read_only.keys() if read_only[name]}
        assert fixed == {"listeners", "listener.security.protocol.map"}


def test_a_change_does_not_undo_what_another_broker_changes_at_once(server, client):
    key, field = "{korvet}:broker.configs", f'["","{RETENTION}"]'
    assert increment(client, ALL, (RETENTION, SET, "5000")) == (0, None)
    # This broker has not noticed it yet.
    server.redis.hset(key, field, "6000")
    assert increment(client, ALL, ("log.retention.bytes", SET, "7000")) == (0, None)
    assert server.redis.hget(key, field) == b"6000"
    assert described(client, ALL)[RETENTION][0] == "6000"

"""Settings: their sources, which source wins, and the messages about values that do not fit."""

import re
from pathlib import Path

import pytest

from korvet.config.address import Address, parse_address, redacted
from korvet.config.checks import STANDARD_AUTHORIZER
from korvet.config.errors import ConfigError
from korvet.config.keys import SECRETS, Setting, settings
from korvet.config.loading import load
from korvet.config.oauth_settings import LOGIN_MODULE, UNSECURED
from korvet.config.settings import Config

PLAIN_USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "korvet.toml"
    file.write_text(text)
    return file


def test_defaults_are_kafkas_where_kafka_has_them() -> None:
    loaded = load()
    assert loaded == Config()
    assert loaded.listen_address == Address("127.0.0.1", 9092)
    assert loaded.message_max_bytes == 1_048_588
    assert loaded.offsets_retention_minutes == 10_080
    assert loaded.offsets_retention_check_interval_ms == 600_000
    assert loaded.offset_metadata_max_bytes == 4_096
    assert loaded.group_initial_rebalance_delay_ms == 100
    assert loaded.auto_create_topics_enable is True


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    file = written(tmp_path, 'num.partitions = 2\ngroup.max.size = 2\nnode_id = 2\nkeyspace = "two"')
    environ = {"KORVET_NUM_PARTITIONS": "3", "KORVET_GROUP_MAX_SIZE": "3", "PATH": "/bin"}
    defaults = {"num.partitions": "1", "group.max.size": "1", "node_id": "1", "message.max.bytes": "1000"}
    flags = {"num_partitions": 4, "listen": None}
    loaded = load(defaults=defaults, file=file, environ=environ, flags=flags)
    assert loaded.message_max_bytes == 1000
    assert loaded.num_partitions == 4
    assert loaded.group_max_size == 3
    assert loaded.node_id == 2
    assert loaded.keyspace == "two"
    assert loaded.listen == Config().listen


@pytest.mark.parametrize(
    "text",
    [
        "auto.create.topics.enable = false",
        '"auto.create.topics.enable" = false',
        "[auto.create.topics]\nenable = false",
        '[auto]\n"create.topics.enable" = false',
    ],
)
def test_dotted_names_may_be_written_in_any_way_of_toml(tmp_path: Path, text: str) -> None:
    assert load(file=written(tmp_path, text)).auto_create_topics_enable is False


def _another(setting: Setting) -> str:
    if isinstance(setting.default, int) and setting.field.startswith("group_share_"):
        # These have narrow bounds, which two of the least values are at.
        is_bound = setting.field.endswith(("min_session_timeout_ms", "min_heartbeat_interval_ms"))
        return str(setting.default - 1 if is_bound else setting.default + 1)
    if setting.field.endswith("_num_partitions"):
        return "7"
    return "1800001" if isinstance(setting.default, int | float) else "other"


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.key)
def test_every_setting_can_be_given_in_the_environment(setting: Setting) -> None:
    texts = {
        "listen": "[::1]:0",
        "advertise": "kafka.example:9092",
        "admin_listen": "[::1]:0",
        "admin_socket": "/tmp/admin.sock",
        "redis": "redis://localhost",
        "log_level": "debug",
        "log_format": "json",
        "request_log_failed": "NOT_*,!NOT_COORDINATOR",
        "request_log_clients": "client=orders-*",
        "embedded_appendfsync": "everysec",
        "embedded_module": "off",
        "offsets_commit_value_version": "4",
        "log_offset_assignment": "dense",
        "offsets_topic_writable": "true",
        "log_retention_memory_ratio": "0.8",
        "log_storage_layout": "batch",
        "acks_all_fsync": "true",
        "errors_deadletterqueue_auto_create_topics_enable": "true",
        "offsets_commit_required_acks": "1",
        "auto_create_topics_enable": "false",
        "log_cleaner_enable": "false",
        "native_groups_enable": "false",
        "group_min_session_timeout_ms": "5000",
        "group_consumer_heartbeat_interval_ms": "5001",
        "group_consumer_min_heartbeat_interval_ms": "5001",
        "group_consumer_min_session_timeout_ms": "5001",
        "group_consumer_assignors": "range",
        "group_consumer_migration_policy": "disabled",
        "listeners": "plaintext://localhost:0",
        "advertised_listeners": "plaintext://kafka.example:9092",
        "sasl_enabled_mechanisms": "PLAIN",
        "oauthbearer_sasl_server_callback_handler_class": UNSECURED,
        "oauthbearer_sasl_jaas_config": f'{LOGIN_MODULE} required unsecuredValidatorScopeClaimName="x";',
        "plain_sasl_jaas_config": PLAIN_USERS,
        "ssl_client_auth": "required",
        "ssl_enabled_protocols": "TLSv1.3",
        "ssl_principal_mapping_rules": "RULE:^CN=(.*?),.*$/$1/L,DEFAULT",
        "authorizer_class_name": STANDARD_AUTHORIZER,
        "super_users": "User:alice",
        "max_connections_per_ip_overrides": "127.0.0.1:5",
        "log_cleanup_policy": "delete,compact,delete",
        "log_cleaner_min_cleanable_ratio": "0.25",
        "drain_wait_ms": "5000",
        "allow_everyone_if_no_acl_found": "true",
    }
    # Settings that require others.
    others = {
        "advertised_listeners": {"KORVET_LISTENERS": "PLAINTEXT://localhost:0"},
        "ssl_client_auth": {"KORVET_SSL_TRUSTSTORE_LOCATION": "ca.pem"},
    }
    text = texts.get(setting.field, _another(setting))
    loaded = load(environ={setting.variable: text, **others.get(setting.field, {})})
    value = getattr(loaded, setting.field)
    assert value != setting.default
    assert str(value).lower() == text.lower()
    assert setting.description.endswith(".")


def test_settings_with_secrets_are_known() -> None:
    named = {each.key for each in settings() if re.search(r"(password|token)$", each.key)}
    assert {"admin.token", "admin.basic.password", "ssl.key.password"} <= named <= SECRETS


LISTENERS = """
listeners = "INTERNAL://h:1,OUT.SIDE://h:2"
listener.security.protocol.map = "INTERNAL:PLAINTEXT,OUT.SIDE:SASL_PLAINTEXT"
connections.max.reauth.ms = 7
listener.name.out.side.connections.max.reauth.ms = 8
listener.name.out.side.sasl.enabled.mechanisms = "PLAIN"
"""


def test_a_listener_has_settings_of_its_own(tmp_path: Path) -> None:
    loaded = load(
        file=written(tmp_path, LISTENERS),
        environ={"KORVET_LISTENER_NAME_OUT_SIDE_CONNECTIONS_MAX_REAUTH_MS": "9"},
        pairs={"listener.name.internal.sasl.enabled.mechanisms": "SCRAM-SHA-256"},
    )
    outside, internal = loaded.of_listener("OUT.SIDE"), loaded.of_listener("INTERNAL")
    assert (loaded.connections_max_reauth_ms, outside.connections_max_reauth_ms) == (7, 9)
    assert internal.connections_max_reauth_ms == 7
    assert (outside.sasl_mechanisms, internal.sasl_mechanisms) == (("PLAIN",), ("SCRAM-SHA-256",))
    assert loaded.sasl_enabled_mechanisms == Config().sasl_enabled_mechanisms


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("KORVET_LISTENER_NAME_SSL_CLIENT_AUTH", "none", "unknown setting"),
        ("KORVET_LISTENER_NAME_A_NUM_PARTITIONS", "1", "unknown setting"),
        ("KORVET_LISTENER_NAME_A_CONNECTIONS_MAX_REAUTH_MS", "soon", "expected `int`"),
        ("KORVET_LISTENER_NAME_A_SSL_KEY_PASSWORD", "secret", "no listener has that name"),
    ],
)
def test_a_listeners_variable_that_does_not_fit_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(environ={variable: value})


def test_a_listeners_unknown_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'listener\.name\.a\.num\.partitions'"):
        load(file=written(tmp_path, "listener.name.a.num.partitions = 1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num.partition = 2", r"korvet\.toml: unknown key 'num\.partition'; did you mean num\.partitions\?"),
        ("num.partitions = 0", r"korvet\.toml: num\.partitions = 0: expected `int` >= 1"),
        ('num.partitions = "2"', r"korvet\.toml: num\.partitions = '2': expected `int`, got `str`"),
        ('log_level = "loud"', r"korvet\.toml: log_level = 'loud'"),
        ("num.partitions = 1\n[num]\npartitions = 2", "not a TOML file"),
        ('num.partitions = 1\n"num.partitions" = 2', r"num\.partitions is given twice"),
        ("num.partitions = ", "not a TOML file"),
        ("offsets.commit.value.version = 2", r"offsets\.commit\.value\.version = 2"),
        ("group.max.session.timeout.ms = 1", r"6000 \(default\) is above .*korvet\.toml"),
        (
            "group.consumer.min.session.timeout.ms = 60001",
            r"group\.consumer\.min\.session\.timeout\.ms = 60001 .* is above group\.consumer\.max\.session",
        ),
        (
            "group.consumer.max.heartbeat.interval.ms = 4999",
            r"min\.heartbeat\.interval\.ms = 5000 \(default\) is above .*\.max\.heartbeat\..* = 4999",
        ),
        (
            "group.consumer.heartbeat.interval.ms = 45000",
            r"heartbeat\.interval\.ms = 45000 .* is not below group\.consumer\.session\.timeout\.ms = 45000",
        ),
        ("group.consumer.session.timeout.ms = 5000", r"5000 \(default\) is not below .*korvet\.toml"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(file=written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load(file=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("KORVET_NUM_PARTITIONS", "many", "KORVET_NUM_PARTITIONS = 'many': expected `int`"),
        ("KORVET_NUM_PARTITIONS", "-1", "KORVET_NUM_PARTITIONS = '-1': expected `int` >= 1"),
        ("KORVET_AUTO_CREATE_TOPICS_ENABLE", "maybe", "KORVET_AUTO_CREATE_TOPICS_ENABLE = 'maybe'"),
        ("KORVET_NUM_PARTITIONS", "\udcff", r"KORVET_NUM_PARTITIONS = '\\udcff': .*surrogates"),
        ("KORVET_NUM_PARTITIONS", "1" * 5000, "exceeds the limit"),
        ("KORVET_PARTITIONS", "1", "KORVET_PARTITIONS: unknown setting"),
        ("KORVET_LISTEN_PORT", "9093", "KORVET_LISTEN_PORT: unknown setting"),
        ("KORVET_LISTEN", "9092", "KORVET_LISTEN: expected HOST:PORT"),
        ("KORVET_LISTEN", "a..b:9092", "KORVET_LISTEN: expected HOST:PORT, not 'a..b:9092'"),
        ("KORVET_ADVERTISE", "a" * 64 + ":9092", "KORVET_ADVERTISE: expected HOST:PORT"),
        ("KORVET_LISTEN", "::1:9092", "KORVET_LISTEN: an IPv6 host must be in brackets"),
        ("KORVET_LISTEN", "PLAINTEXT://h:1", "KORVET_LISTEN: expected HOST:PORT without a protocol"),
        ("KORVET_LISTEN", "host:65536", "KORVET_LISTEN: expected a port"),
        ("KORVET_ADVERTISE", "host:0", "KORVET_ADVERTISE: clients cannot connect to port 0"),
        ("KORVET_ADVERTISE", "0.0.0.0:9092", "KORVET_ADVERTISE: .* nonroutable meta-address 0.0.0.0"),
        ("KORVET_ADVERTISE", "[::]:9092", "KORVET_ADVERTISE: .* nonroutable meta-address ::"),
        ("KORVET_ADVERTISE", "[0:0::0]:9092", "KORVET_ADVERTISE: .* nonroutable meta-address"),
        ("KORVET_KEYSPACE", "{a}", "KORVET_KEYSPACE: expected letters"),
        ("KORVET_KEYSPACE", "a" * 101, "KORVET_KEYSPACE: expected .*, at most 100"),
        (
            "KORVET_REDIS",
            "http://u:secret@host",
            r"KORVET_REDIS: expected a URL .* got 'http://u:\*\*\*@host'",
        ),
    ],
)
def test_a_variable_that_does_not_fit_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(environ={variable: value})


@pytest.mark.parametrize(
    "variable",
    [
        "KORVET_REQUIRE_EXT",
        "KORVET_CONFIG",
        "KORVET_PORT",
        "KORVET_SERVICE_HOST",
        "KORVET_PORT_9092_TCP",
        "KORVET_BOOTSTRAP_PORT",
        "KORVET_BOOTSTRAP_SERVICE_HOST",
        "KORVET_BOOTSTRAP_SERVICE_PORT_KAFKA",
        "KORVET_BOOTSTRAP_PORT_9092_TCP_ADDR",
        "KORVET_REDIS_USER",
        "KORVET_REDIS_PASSWORD",
        "KORVET_REDIS_PASSWORD_FILE",
        "KORVET_REDIS_SENTINEL_PASSWORD",
        "KORVET_REDIS_CA",
        "KORVET_REDIS_CERT",
        "KORVET_REDIS_KEY",
    ],
)
def test_variables_of_others_are_left_alone(variable: str) -> None:
    assert load(environ={variable: "tcp://10.0.0.1:9092"}) == Config()


def test_an_empty_variable_is_not_set() -> None:
    assert load(environ={"KORVET_REDIS": ""}) == Config()


def test_a_flag_that_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigError, match="--listen: expected HOST:PORT"):
        load(flags={"listen": "nowhere"})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num.partitions", "many", "--set num.partitions = 'many': expected `int`"),
        ("admin.listen", "nowhere", "--set admin.listen: expected HOST:PORT"),
        (
            "log_level",
            "loud",
            "--set log_level = 'loud': expected one of 'debug', 'error', 'info', 'warning'",
        ),
        ("embedded.appendfsync", "x", "--set embedded.appendfsync = .x.: expected one of 'always'"),
        ("num.partition", "1", "--set num.partition=1: unknown key .*; did you mean num.partitions"),
    ],
)
def test_a_pair_that_does_not_fit_is_named(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(pairs={key: value})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("rediss://me:secret@host", "rediss://me:***@host"),
        ("redis://host:6379", "redis://host:6379"),
        ("redis://me:se/cr@et@one:1,[::1]:2", "redis://me:***@one:1,[::1]:2"),
        ("redis://host?password=secret&db=1", "redis://host?password=***&db=1"),
        ("redis://host:1?password=se@cret", "redis://host:1?password=***"),
        (
            "redis+sentinel://h/n?db=1&sentinel_password=secret",
            "redis+sentinel://h/n?db=1&sentinel_password=***",
        ),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize("text", ["localhost:9092", "[::1]:9092", "0.0.0.0:0"])
def test_addresses_are_printed_as_they_were_read(text: str) -> None:
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("assignors", ["sticky", "uniform,sticky", ","])
def test_assignors_are_those_that_there_are(assignors: str) -> None:
    with pytest.raises(ConfigError, match=r"GROUP_CONSUMER_ASSIGNORS.*expected some of uniform, range"):
        load(environ={"KORVET_GROUP_CONSUMER_ASSIGNORS": assignors})

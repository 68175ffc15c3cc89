"""The settings of each of several broker processes."""

from __future__ import annotations

import msgspec
import pytest

from korvet.cli.processes import arguments, broker_configs, environment
from korvet.config.errors import ConfigError
from korvet.config.loading import load
from korvet.config.settings import Config, ListenerSetting


def test_ports_and_node_ids_count_up() -> None:
    asked = Config(
        processes=3,
        node_id=7,
        listen="[::1]:9092",
        advertise="kafka.example:19092",
        redis="unix:///s",
        num_partitions=5,
    )
    told = broker_configs(asked)
    assert [(each.node_id, each.listen, each.advertise) for each in told] == [
        (7, "[::1]:9092", "kafka.example:19092"),
        (8, "[::1]:9093", "kafka.example:19093"),
        (9, "[::1]:9094", "kafka.example:19094"),
    ]
    assert {(each.processes, each.redis, each.num_partitions) for each in told} == {(1, "unix:///s", 5)}


def test_any_free_port_stays_any() -> None:
    told = broker_configs(Config(processes=2, listen="127.0.0.1:0"))
    assert [(each.listen, each.advertise) for each in told] == [("127.0.0.1:0", None)] * 2


def test_ports_of_all_listeners_count_up() -> None:
    asked = Config(
        processes=2,
        listeners="INTERNAL://:9092,PUBLIC://[::]:9094",
        advertised_listeners="PUBLIC://kafka.example:443",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,PUBLIC:PLAINTEXT",
    )
    assert [(each.listeners, each.advertised_listeners) for each in broker_configs(asked)] == [
        ("INTERNAL://:9092,PUBLIC://[::]:9094", "PUBLIC://kafka.example:443"),
        ("INTERNAL://:9093,PUBLIC://[::]:9095", "PUBLIC://kafka.example:444"),
    ]
    for listeners in ("A://h:9092,B://h:9093", "A://h:0"):
        with pytest.raises(ConfigError, match="ports that are 2 or more apart"):
            broker_configs(msgspec.structs.replace(asked, listeners=listeners))


@pytest.mark.parametrize("address", ["listen", "advertise"])
def test_too_few_ports_are_refused(address: str) -> None:
    assert len(broker_configs(Config(processes=6, **{address: "h:65530"}))) == 6
    with pytest.raises(ConfigError, match="a port would exceed 65535"):
        broker_configs(Config(processes=7, **{address: "h:65530"}))


def test_a_process_reads_from_its_environment_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KORVET_CONFIG", "/nowhere")
    monkeypatch.setenv("KORVET_ADVERTISE", "elsewhere:1")
    monkeypatch.setenv("OTHER", "stays")
    told = Config(
        auto_create_topics_enable=False,
        log_retention_ms=-1,
        redis="redis://u:p@h/2",
        listeners="A.B-C://h:1",
        listener_security_protocol_map="A.B-C:SASL_PLAINTEXT",
        listener_settings=(
            ListenerSetting("A_B_C", "connections_max_reauth_ms", 5),
            ListenerSetting("A_B_C", "sasl_enabled_mechanisms", "PLAIN"),
        ),
    )
    environ = environment(told)
    assert environ["OTHER"] == "stays"
    assert "KORVET_CONFIG" not in environ
    assert load(environ=environ) == told


def test_a_process_has_the_empty_values_that_it_was_told() -> None:
    """An empty variable counts as not set: the process would delete records after a week."""
    told = Config(
        log_cleanup_policy="",
        metrics_topics="",
        listeners="A.B-C://h:1",
        listener_security_protocol_map="A.B-C:SASL_PLAINTEXT",
        plain_sasl_jaas_config='x required user_ada="secret";',
        listener_settings=(ListenerSetting("A_B_C", "plain_sasl_jaas_config", ""),),
    )
    pairs = dict(argument.removeprefix("--set=").split("=", 1) for argument in arguments(told))
    assert load(environ=environment(told), pairs=pairs) == told
    assert arguments(Config()) == []


def test_the_first_admin_port_is_that_of_the_main_process() -> None:
    told = broker_configs(Config(processes=2, admin_listen="[::]:9308", admin_socket="/run/korvet.sock"))
    assert [each.admin_listen for each in told] == ["[::]:9309", "[::]:9310"]
    assert {each.admin_socket for each in told} == {"-"}
    told = broker_configs(Config(processes=2, admin_listen="127.0.0.1:0"))
    assert {each.admin_listen for each in told} == {"127.0.0.1:0"}


@pytest.mark.parametrize(
    ("admin", "listeners"),
    [(9090, None), (9092, None), (9093, None), (9100, "A://h:9050,B://h:9101"), (65_534, None)],
)
def test_admin_ports_that_are_taken_or_missing_are_refused(admin: int, listeners: str | None) -> None:
    asked = Config(processes=2, admin_listen=f"h:{admin}", listen="h:9092", listeners=listeners)
    with pytest.raises(ConfigError, match="a port would exceed" if admin == 65_534 else "admin.listen"):
        broker_configs(asked)
    assert len(broker_configs(msgspec.structs.replace(asked, admin_listen="h:9200"))) == 2

"""What each of several broker processes is told."""

from __future__ import annotations

import pytest

from korvet import config
from korvet.cli.processes import broker_configs, environment
from korvet.config import Config, ConfigError


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


@pytest.mark.parametrize("address", ["listen", "advertise"])
def test_too_few_ports_are_refused(address: str) -> None:
    assert len(broker_configs(Config(processes=6, **{address: "h:65530"}))) == 6
    with pytest.raises(ConfigError, match="no ports for so many"):
        broker_configs(Config(processes=7, **{address: "h:65530"}))


def test_a_process_reads_from_its_environment_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KORVET_CONFIG", "/nowhere")
    monkeypatch.setenv("KORVET_ADVERTISE", "elsewhere:1")
    monkeypatch.setenv("OTHER", "stays")
    told = Config(listen="h:1", auto_create_topics_enable=False, log_retention_ms=-1, redis="redis://u:p@h/2")
    environ = environment(told)
    assert environ["OTHER"] == "stays"
    assert "KORVET_CONFIG" not in environ
    assert config.load(environ=environ) == told

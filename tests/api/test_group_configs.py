"""Configs of groups (resource type 32): altered, described, listed, persisted, and their effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from tests.api.asking import Client, connect, versions
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = 32
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SET, DELETE, APPEND = 0, 1, 2
OWN, STATIC, DEFAULT = 8, 4, 5
RANGE = "must be in the range"
NO_INT = "Not a number of type INT"
LOCK, LOCKS = "share.record.lock.duration.ms", "share.partition.max.record.locks"
LEVEL, RENEW, RESET = "share.isolation.level", "share.renew.acknowledge.enable", "share.auto.offset.reset"
SHARED, INTERVAL = "share.session.timeout.ms", "share.assignment.interval.ms"
LETTERS, COPIES = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
NO_LETTERS = "The name of a dead letter topic must not begin with '__'"
NO_BOOLEAN = "Expected value to be either true or false"
LEVELS = "String must be one of: read_committed, read_uncommitted"
NO_RESET = (
    f"Invalid value `{{}}` for configuration {RESET}. The value must be either 'earliest', 'latest' or of "
    "the format 'by_duration:<PnDTnHnMn.nS>'."
)
DEFAULTS = {
    SESSION: "45000",
    HEARTBEAT: "4000",
    "share.session.timeout.ms": "45000",
    "share.heartbeat.interval.ms": "5000",
    "share.assignment.interval.ms": "1000",
    LOCK: "30000",
    "share.delivery.count.limit": "5",
    LOCKS: "2000",
    RESET: "latest",
    LEVEL: "read_uncommitted",
    RENEW: "true",
    LETTERS: "",
    COPIES: "false",
}


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A server whose groups may have short sessions."""
    bounds = {"min.session.timeout.ms": 1000, "min.heartbeat.interval.ms": 100, "heartbeat.interval.ms": 4000}
    with KorvetServer(*(f"--set=group.consumer.{name}={value}" for name, value in bounds.items())) as server:
        yield server


@pytest.fixture
def client(server: KorvetServer) -> Iterator[Client]:
    with connect(server) as asking:
        yield asking


def alter(client: Client, group: str, *changes: Any, version: int = 1, **fields: Any) -> Any:
    """Changes are (name, value[, operation])."""
    configs = [
        {"name": name, "value": value, "config_operation": more[0] if more else SET}
        for name, value, *more in changes
    ]
    wanted = [{"resource_type": GROUP, "resource_name": group, "configs": configs}]
    fields = {"resources": wanted, "validate_only": False} | fields
    (answer,) = client("IncrementalAlterConfigs", version, **fields).responses
    return answer.error_code, answer.error_message


def described(client: Client, group: str, version: int = 4, keys: Any = None) -> dict[str, Any]:
    wanted = [{"resource_type": GROUP, "resource_name": group, "configuration_keys": keys}]
    (result,) = client("DescribeConfigs", version, resources=wanted, include_synonyms=True).results
    assert result.error_code is ErrorCode.none
    return {config.name: config for config in result.configs}


def listed(client: Client) -> set[str]:
    answer = client("ListConfigResources", 1, resource_types=[GROUP])
    assert {each.resource_type for each in answer.config_resources} <= {GROUP}
    return {each.resource_name for each in answer.config_resources}


@versions("IncrementalAlterConfigs")
def test_altered_described_and_listed(client, fresh, version):
    group = fresh("group")
    assert alter(client, group, (SESSION, " 2000 "), (HEARTBEAT, "500"), version=version) == (0, None)
    shown = described(client, group)
    found = {name: config.value for name, config in shown.items()}
    assert found == DEFAULTS | {SESSION: "2000", HEARTBEAT: "500"}
    session, heartbeat = shown[SESSION], shown[HEARTBEAT]
    assert (session.config_source, session.read_only, session.is_sensitive) == (OWN, False, False)
    assert [(one.name, one.value, one.source) for one in session.synonyms] == [
        (SESSION, "2000", OWN),
        (f"group.{SESSION}", "45000", DEFAULT),
    ]
    assert [one.source for one in heartbeat.synonyms] == [OWN, STATIC, DEFAULT]
    assert group in listed(client)
    changes = ((SESSION, None, DELETE), (HEARTBEAT, "600"))
    assert alter(client, group, *changes, version=version, validate_only=True) == (0, None)
    assert described(client, group)[SESSION].value == "2000"
    assert alter(client, group, *changes, version=version) == (0, None)
    shown = described(client, group)
    assert (shown[SESSION].value, shown[SESSION].config_source) == ("45000", DEFAULT)
    assert shown[HEARTBEAT].value == "600"
    assert alter(client, group, (HEARTBEAT, None, DELETE), ("no.such", None, DELETE)) == (0, None)
    shown = described(client, group)
    assert (shown[HEARTBEAT].value, shown[HEARTBEAT].config_source) == ("4000", STATIC)
    assert group not in listed(client)


@versions("DescribeConfigs")
def test_every_version_describes_groups_that_have_set_nothing(client, fresh, version):
    assert {name: each.value for name, each in described(client, fresh("group"), version).items()} == DEFAULTS
    assert described(client, fresh("group"), version, [SESSION, "other"]).keys() == {SESSION}


def test_configs_of_share_groups(client, fresh, server):
    """They are kept over a restart, in the form that has been checked."""
    group = fresh("group")
    wanted = {
        "share.session.timeout.ms": "46000",
        "share.heartbeat.interval.ms": "6000",
        "share.assignment.interval.ms": "0",
        LOCK: "15000",
        "share.delivery.count.limit": "2",
        LOCKS: "100",
        RESET: "by_duration:P1DT2H3.5S",
        LEVEL: "read_committed",
        RENEW: "False",
    }
    assert alter(client, group, *wanted.items()) == (0, None)
    kept = wanted | {RENEW: "false"}
    server.kill()
    server.start()
    with connect(server) as again:
        shown = described(again, group)
        assert {name: shown[name].value for name in wanted} == kept
        assert {shown[name].config_source for name in wanted} == {OWN}
        assert [(one.name, one.source) for one in shown[LEVEL].synonyms] == [(LEVEL, OWN)]
        assert [each.name for each in shown.values() if each.config_type == 1] == [RENEW, COPIES]


@versions("AlterConfigs")
def test_all_configs_are_replaced(client, fresh, version):
    group = fresh("group")
    assert alter(client, group, (SESSION, "50000")) == (0, None)
    wanted = [
        {"resource_type": GROUP, "resource_name": group, "configs": [{"name": HEARTBEAT, "value": "700"}]}
    ]
    (answer,) = client("AlterConfigs", version, resources=wanted, validate_only=False).responses
    assert answer.error_code is ErrorCode.none
    shown = described(client, group)
    assert (shown[SESSION].config_source, shown[HEARTBEAT].value) == (DEFAULT, "700")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((SESSION, "999"), f"{SESSION} {RANGE} 1000 to 60000 inclusive."),
        ((SESSION, "60001"), f"{SESSION} {RANGE} 1000 to 60000 inclusive."),
        ((HEARTBEAT, "99"), f"{HEARTBEAT} {RANGE} 100 to 15000 inclusive."),
        ((HEARTBEAT, "15001"), f"{HEARTBEAT} {RANGE} 100 to 15000 inclusive."),
        ((SESSION, "4000"), f"{SESSION} must be greater than {HEARTBEAT}"),
        ((SESSION, "0"), f"Invalid value 0 for configuration {SESSION}: Value must be at least 1"),
        ((SESSION, "soon"), f"Invalid value soon for configuration {SESSION}: {NO_INT}"),
        ((SESSION, "50_000"), f"Invalid value 50_000 for configuration {SESSION}: {NO_INT}"),
        ((SESSION, str(2**31)), f"Invalid value {2**31} for configuration {SESSION}: {NO_INT}"),
        (("streams.session.timeout.ms", "50000"), "Unknown group config name: streams.session.timeout.ms"),
        ((SHARED, "44999"), f"{SHARED} {RANGE} 45000 to 60000 inclusive."),
        ((INTERVAL, "15001"), f"{INTERVAL} {RANGE} 0 to 15000 inclusive."),
        (("share.record.lock.duration.ms", "14999"), f"{LOCK} {RANGE} 15000 to 60000 inclusive."),
        ((LOCK, "999"), f"Invalid value 999 for configuration {LOCK}: Value must be at least 1000"),
        (("share.delivery.count.limit", "11"), f"share.delivery.count.limit {RANGE} 2 to 10 inclusive."),
        (("share.partition.max.record.locks", "4001"), f"{LOCKS} {RANGE} 100 to 4000 inclusive."),
        ((LEVEL, "Read_Committed"), f"Invalid value Read_Committed for configuration {LEVEL}: {LEVELS}"),
        ((RENEW, "yes"), f"Invalid value yes for configuration {RENEW}: {NO_BOOLEAN}"),
        ((COPIES, "yes"), f"Invalid value yes for configuration {COPIES}: {NO_BOOLEAN}"),
        ((LETTERS, "__d"), f"Invalid value __d for configuration {LETTERS}: {NO_LETTERS}"),
        ((RESET, "none"), f"Invalid value none for configuration {RESET}: {NO_RESET.format('none')}"),
        ((RESET, "by_duration:-PT1S"), f"Invalid value by_duration:-PT1S for configuration {RESET}: "
         + NO_RESET.format("by_duration:-PT1S")),
        ((SESSION, "1", APPEND), f"Can't APPEND to key {SESSION} because its type is not LIST."),
    ],
)  # fmt: skip
def test_what_cannot_be(client, fresh, change, message):
    group = fresh("group")
    assert alter(client, group, (HEARTBEAT, "600") if change[0] != HEARTBEAT else (SESSION, "50000"))[0] == 0
    if message.endswith(HEARTBEAT):
        alter(client, group, (HEARTBEAT, None, DELETE))
    before = {name: config.value for name, config in described(client, group).items()}
    assert alter(client, group, change) == (ErrorCode.invalid_config, message)
    assert {name: config.value for name, config in described(client, group).items()} == before


def test_a_group_has_a_name(client):
    assert alter(client, "", (SESSION, "2000")) == (
        ErrorCode.invalid_request,
        "Default group resources are not allowed.",
    )
    wanted = [{"resource_type": GROUP, "resource_name": ""}]
    (result,) = client("DescribeConfigs", 4, resources=wanted).results
    assert result.error_code is ErrorCode.invalid_request


def test_members_live_by_them_over_a_restart(client, fresh, server):
    """The next heartbeat returns the interval; a member that is silent for longer than its session is
    removed.
    """
    group = fresh("group")
    wanted = {"name": group, "num_partitions": 1, "replication_factor": 1}
    client("CreateTopics", 7, topics=[wanted], timeout=10_000, validate_only=False)
    fields = {
        "group_id": group,
        "rebalance_timeout": 10_000,
        "subscribed_topic_names": [group],
        "topic_partitions": [],
    }
    joined = until(lambda: joined_by(client, fields), 20, "the coordinator has loaded")
    assert heartbeat_ms(joined) == 4000
    assert alter(client, group, (SESSION, "1500"), (HEARTBEAT, "300")) == (0, None)
    beat = {"group_id": group, "member_id": "m", "member_epoch": joined.member_epoch, "rebalance_timeout": -1}
    assert heartbeat_ms(client("ConsumerGroupHeartbeat", 1, **beat)) == 300

    def members(asking: Client) -> int:
        (found,) = asking("ConsumerGroupDescribe", 1, group_ids=[group]).groups
        return len(found.members)

    until(lambda: members(client) == 0, 20, "the member that is silent is out")
    server.kill()
    server.start()
    with connect(server) as again:
        assert described(again, group)[SESSION].value == "1500"
        assert heartbeat_ms(until(lambda: joined_by(again, fields), 20, "loaded")) == 300


def joined_by(client: Client, fields: dict[str, Any]) -> Any:
    answer = client("ConsumerGroupHeartbeat", 1, member_id="m", member_epoch=0, **fields)
    return answer if answer.error_code is ErrorCode.none else None


def heartbeat_ms(answer: Any) -> int:
    assert answer.error_code is ErrorCode.none
    interval = answer.heartbeat_interval
    return int(interval.total_seconds() * 1000)

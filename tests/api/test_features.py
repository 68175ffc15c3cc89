"""UpdateFeatures and DescribeQuorum: Kafka's answers, and the effects of levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.api.asking import Client, connect, versions
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

UNSUPPORTED, NOT_FOUND, INVALID_UPDATE = 35, 69, 95
UPGRADE, SAFE, UNSAFE = 1, 2, 3
TRANSACTIONS, GROUPS, METADATA = "transaction.version", "group.version", "metadata.version"
SHARING = "share.version"
HIGHEST = {TRANSACTIONS: 2, GROUPS: 1, METADATA: 33, SHARING: 2}
FAILED = (
    "The update failed for all features since the following feature had an error: "
    "Invalid update version {} for feature {}. {}"
)
TOO_LOW = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
    "downgrade."
)
NO_SUCH_TYPE = "The controller does not support the given upgrade type."


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with KorvetServer() as server:
        # The first version of the assignment is 0.
        assert server.stop() == 0
        server.restart()
        yield server


@pytest.fixture
def client(server: KorvetServer) -> Iterator[Client]:
    with connect(server) as asking:
        yield asking
    with connect(server) as asking:
        for name, level in HIGHEST.items():
            assert update(asking, (name, level, UPGRADE)) == (0, None, {})


def update(client: Client, *updates: tuple[str, int, int], version: int = 2, validate: bool = False) -> Any:
    """Updates are (feature, level, type). Returns error, message and the errors of features."""
    wanted = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind > UPGRADE}
        for name, level, kind in updates
    ]
    answer = client("UpdateFeatures", version, feature_updates=wanted, validate_only=validate)
    results = {one.feature: int(one.error_code) for one in getattr(answer, "results", ())}
    return int(answer.error_code), answer.error_message, results


def levels(client: Client) -> tuple[dict[str, int], int]:
    """The finalized levels and their epoch."""
    answer = client("ApiVersions", 4, client_software_name="x", client_software_version="1")
    found = {one.name: one.max_version_level for one in answer.finalized_features}
    return found, answer.finalized_features_epoch


@versions("UpdateFeatures", since=1)
def test_down_and_up_again(client, version):
    epochs = [levels(client)[1]]
    for level, kind in ((1, SAFE), (0, UNSAFE), (2, UPGRADE)):
        answer = update(client, (TRANSACTIONS, level, kind), version=version)
        assert answer == (0, None, {TRANSACTIONS: 0} if version == 1 else {})
        found, epoch = levels(client)
        # A feature at level 0 is not finalized.
        assert found == {name: level for name, level in (HIGHEST | {TRANSACTIONS: level}).items() if level}
        epochs.append(epoch)
    assert epochs == sorted(set(epochs))


def test_version_0_upgrades_only(client):
    assert update(client, (TRANSACTIONS, 2, UPGRADE), version=0) == (0, None, {TRANSACTIONS: 0})
    assert update(client, (TRANSACTIONS, 1, SAFE), version=0) == (
        INVALID_UPDATE,
        FAILED.format(1, TRANSACTIONS, TOO_LOW),
        {},
    )


def test_only_validating_changes_nothing(client):
    before = levels(client)
    assert update(client, (TRANSACTIONS, 1, SAFE), validate=True) == (0, None, {})
    assert update(client, (TRANSACTIONS, 1, UPGRADE), validate=True)[0] == INVALID_UPDATE
    assert update(client) == (0, None, {})
    assert update(client, (TRANSACTIONS, 2, SAFE), (GROUPS, 1, UPGRADE), (METADATA, 33, UNSAFE)) == (
        0,
        None,
        {},
    )
    assert levels(client) == before


# As Apache Kafka 4.4 answers.
@pytest.mark.parametrize(
    ("name", "level", "kind", "message"),
    [
        (TRANSACTIONS, 1, UPGRADE, TOO_LOW),
        (TRANSACTIONS, 0, UPGRADE, TOO_LOW),
        (TRANSACTIONS, 3, UPGRADE, "Local controller 1 only supports versions 0-2"),
        (TRANSACTIONS, 3, SAFE, "Local controller 1 only supports versions 0-2"),
        (TRANSACTIONS, 32767, UPGRADE, "Local controller 1 only supports versions 0-2"),
        (TRANSACTIONS, -1, UPGRADE, "A feature version cannot be less than 0."),
        (TRANSACTIONS, 2, 0, NO_SUCH_TYPE),
        (TRANSACTIONS, 2, 9, NO_SUCH_TYPE),
        (GROUPS, 2, UPGRADE, "Local controller 1 only supports versions 0-1"),
        ("no.such", 1, UPGRADE, "Local controller 1 does not support this feature."),
        ("no.such", 0, SAFE, "Feature no.such not found."),
        ("", 1, UPGRADE, "Local controller 1 does not support this feature."),
        (METADATA, 0, SAFE, "Local controller 1 only supports versions 7-33"),
        (METADATA, 25, UPGRADE, TOO_LOW),
    ],
)
def test_levels_that_cannot_be(client, name, level, kind, message):
    before = levels(client)
    refused = (INVALID_UPDATE, FAILED.format(level, name, message), {})
    assert update(client, (name, level, kind)) == refused
    # No other feature changes either.
    assert update(client, (GROUPS, 0, SAFE), (name, level, kind)) == refused
    assert levels(client) == before


def test_the_metadata_version_cannot_be_lowered(client):
    for kind, why in (
        (SAFE, "Refusing to perform the requested downgrade because it might delete metadata information."),
        (UNSAFE, "Unsafe metadata downgrade is not supported in this version."),
    ):
        error, message, _ = update(client, (METADATA, 32, kind))
        assert error == INVALID_UPDATE
        assert (
            message
            == f"{FAILED.partition('Invalid')[0]}Unsupported {METADATA} downgrade from 33 to 32. {why}"
        )


def test_a_downgrade_does_not_raise_a_level(client):
    assert update(client, (TRANSACTIONS, 1, SAFE)) == (0, None, {})
    for kind in (SAFE, UNSAFE):
        message = FAILED.format(2, TRANSACTIONS, "Can't downgrade to a newer version.")
        assert update(client, (TRANSACTIONS, 2, kind)) == (INVALID_UPDATE, message, {})


def test_levels_survive_a_restart(server, client):
    assert update(client, (TRANSACTIONS, 1, SAFE)) == (0, None, {})
    before = levels(client)
    assert server.stop() == 0
    server.restart()
    with connect(server) as asking:
        found, epoch = levels(asking)
    assert found == before[0]
    assert epoch >= before[1]


def test_other_brokers_follow(server, client):
    other = KorvetServer("--node-id=2", redis_url=f"unix://{server.socket_path()}")
    try:
        other.start()
        with connect(other) as asking:
            assert levels(asking)[0] == HIGHEST
            assert update(client, (GROUPS, 0, SAFE)) == (0, None, {})
            left = {name: level for name, level in HIGHEST.items() if name != GROUPS}
            until(lambda: levels(asking)[0] == left, 20, "the other broker's levels")
            assert levels(asking)[1] == levels(client)[1]
            quorum = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
            ((found,),) = (topic.partitions for topic in asking("DescribeQuorum", 2, topics=[quorum]).topics)
            assert (found.leader_id, [each.replica_id for each in found.observers]) == (1, [2])
    finally:
        other.stop()
        other.discard()
    until(lambda: len(client("DescribeCluster", 0).brokers) == 1, 20, "the other broker has left")


def test_without_the_group_version_there_is_no_consumer_protocol(client):
    def heartbeat() -> int:
        fields = {"group_id": "g", "member_id": "m", "rebalance_timeout": 1000, "topic_partitions": []}
        return int(client("ConsumerGroupHeartbeat", 1, **fields, subscribed_topic_names=["t"]).error_code)

    assert heartbeat() == 0
    assert update(client, (GROUPS, 0, SAFE)) == (0, None, {})
    assert heartbeat() == UNSUPPORTED
    (group,) = client("ConsumerGroupDescribe", 1, group_ids=["g"]).groups
    assert group.error_code == UNSUPPORTED
    assert update(client, (GROUPS, 1, UPGRADE)) == (0, None, {})
    (group,) = client("ConsumerGroupDescribe", 1, group_ids=["g"]).groups
    assert group.error_code == 0


def test_without_the_share_version_there_are_no_share_groups(client):
    fields = {"group_id": "shared", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}

    def answers() -> tuple[int, int]:
        (group,) = client("ShareGroupDescribe", 1, group_ids=["shared"]).groups
        return int(client("ShareGroupHeartbeat", 1, **fields).error_code), int(group.error_code)

    assert update(client, (SHARING, 0, SAFE)) == (0, None, {})
    (shown,) = client("DescribeShareGroupOffsets", 1, groups=[{"group_id": "shared", "topics": []}]).groups
    changes = [client(f"{verb}ShareGroupOffsets", 0, group_id="shared") for verb in ("Alter", "Delete")]
    taking = {"group_id": "shared", "member_id": "m"}
    refused = (shown, *changes, client("ShareFetch", 2, **taking), client("ShareAcknowledge", 2, **taking))
    assert {each.error_code for each in refused} == {UNSUPPORTED}

    assert answers() == (UNSUPPORTED, UNSUPPORTED)
    assert update(client, (SHARING, 3, UPGRADE))[0] == INVALID_UPDATE
    assert update(client, (SHARING, 1, UPGRADE)) == (0, None, {})
    assert levels(client)[0] == HIGHEST | {SHARING: 1}
    assert answers() == (0, NOT_FOUND)
    assert answers() == (0, 0)
    assert update(client, (SHARING, 0, SAFE)) == (0, None, {})
    assert answers() == (UNSUPPORTED, UNSUPPORTED)
    (listed,) = client("ListGroups", 5, states_filter=[], types_filter=["share"]).groups
    assert (listed.group_id, listed.group_type, listed.group_state) == ("shared", "share", "Stable")


@versions("DescribeQuorum")
def test_the_controller_is_the_only_voter(server, client, version):
    asked = [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}, {"partition_index": 1}]},
        {"topic_name": "orders", "partitions": [{"partition_index": 0}]},
    ]
    answer = client("DescribeQuorum", version, topics=asked)
    assert answer.error_code == 0
    (found, beyond), (other,) = (topic.partitions for topic in answer.topics)
    assert (found.error_code, beyond.error_code, other.error_code) == (0, 3, 3)
    assert [voter.replica_id for voter in found.current_voters] == [found.leader_id] == [1]
    assert found.observers == ()
    assert found.high_watermark == found.current_voters[0].log_end_offset == found.leader_epoch > 0
    if version == 2:
        (node,) = answer.nodes
        (listener,) = node.listeners
        assert (node.node_id, listener.host, listener.port) == (1, server.host, server.port)
        assert client("DescribeQuorum", 2, topics=asked[1:]).nodes == ()

"""Damaged fields of the hashes that brokers share are skipped, logged once, and found by `korvet doctor`; and
which changes of these hashes a full Redis takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from korvet.cli.keyspace_checks import check_shared
from korvet.cluster.shared_configs import SharedConfigs
from korvet.config.address import Address
from korvet.config.live import LiveConfig
from korvet.config.settings import Config
from korvet.groups.own_configs import OwnConfigs
from korvet.quotas.throttle import ClientQuotas
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import AllowanceSpent, KeyspaceLost, OutOfMemory
from korvet.redis.keys import OFFSETS_TOPIC, Keyspace
from korvet.security.acls import Acl
from korvet.security.authorizer import Authorizer
from korvet.security.credentials import Credentials
from korvet.security.scram import ScramMechanism, new_credential
from korvet.store import Store
from korvet.topics.compaction import LogCleaner
from korvet.topics.configs import config_problem
from korvet.topics.directory import TopicDirectory
from korvet.topics.internal import create_internal
from korvet.topics.retention import apply_retention
from tests.support.logs import append_own
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.support.redis_server import Server

WAIT_S = 10
LEASE_MS = 1000
ACL = Acl(2, "orders", 3, "User:alice", "*", 3, 3)
TOPIC = {"name": "good", "topic_id": "0" * 32, "partitions": 3, "configs": {"retention.ms": "1000"}}
QUOTA = b'[[["user","alice"]],"producer_byte_rate"]'
GROUP_CONFIG = b'["group","consumer.session.timeout.ms"]'
BROKER_CONFIG = b'["1","log.retention.ms"]'
CREDENTIAL = new_credential(ScramMechanism.SHA_256, "secret").encode()
# One good field of each hash.
GOOD: dict[str, tuple[bytes, bytes]] = {
    "topics": (b"good", msgspec.json.encode(TOPIC)),
    "users": (b"SCRAM-SHA-256:alice", CREDENTIAL),
    "acls": (msgspec.json.encode(ACL), b""),
    "quotas": (QUOTA, b"1024.0"),
    "group.configs": (GROUP_CONFIG, b"50000"),
    "broker.configs": (BROKER_CONFIG, b"5000"),
    "features": (b"transaction.version", b"1"),
}
# The parts of a lease entry that a test can know.
ENTRY = b"99999999999999 token 0 -1 -1 "
DESCRIPTION = (
    b'{"host":"localhost","port":9099,"process":{"host":"h","pid":1,"started":"","namespace":""},'
    b'"listeners":[]}'
)
MALFORMED: list[tuple[str, bytes, bytes]] = [
    ("topics", b"bad", b"\xff\x00"),
    ("topics", b"bad", b"[" * 100_000),
    ("topics", b"bad", GOOD["topics"][1]),
    ("topics", b"b d", msgspec.json.encode(TOPIC | {"name": "b d"})),
    ("topics", b"bad", msgspec.json.encode(TOPIC | {"name": "bad", "partitions": 0})),
    ("topics", b"bad", msgspec.json.encode(TOPIC | {"name": "bad", "partitions": 2**62})),
    ("topics", b"bad", msgspec.json.encode(TOPIC | {"name": "bad", "offset_assignment": "lucky"})),
    ("topics", b"bad", msgspec.json.encode(TOPIC | {"name": "bad", "configs": {"retention.ms": "x"}})),
    ("brokers", b"7", b"garbage"),
    ("brokers", b"x", ENTRY + DESCRIPTION),
    ("brokers", b"007", ENTRY + DESCRIPTION),
    ("brokers", b"99999999999", ENTRY + DESCRIPTION),
    ("brokers", b"7", ENTRY + DESCRIPTION),
    ("brokers", b"7", ENTRY + b"{}"),
    ("brokers", b"7", ENTRY + b'{"host":'),
    ("brokers", b"7", ENTRY + DESCRIPTION.replace(b"9099", b"99999")),
    ("users", b"SCRAM-SHA-1:bob", CREDENTIAL),
    ("users", b"\xff", CREDENTIAL),
    ("users", b"SCRAM-SHA-256:bob", CREDENTIAL.replace(b"iterations=4096", b"iterations=999999999999")),
    ("users", b"SCRAM-SHA-256:bob", b"salt=,stored_key=%,server_key=,iterations=1"),
    ("acls", b"[4]", b""),
    ("acls", b'[2,"orders",9,"User:alice","*",3,3]', b""),
    ("acls", b'[2,"orders",3,"alice","*",3,3]', b""),
    ("quotas", QUOTA.replace(b"alice", b"bob"), b"nan"),
    ("quotas", QUOTA.replace(b"alice", b"bob"), b"-1"),
    ("quotas", b'[[["user","bob"]],"speed"]', b"1"),
    ("group.configs", GROUP_CONFIG.replace(b"group", b"other", 1), b"9" * 5000),
    ("group.configs", GROUP_CONFIG.replace(b"group", b"other", 1), b"-5"),
    ("group.configs", b'["other"]', b"5"),
    ("broker.configs", b"garbage", b"5"),
    ("broker.configs", b'["x","log.retention.ms"]', b"5"),
    ("broker.configs", b'["1","log.retention.bytes"]', b"\xff"),
    ("features", b"transaction.version ", b"1"),
    ("features", b"group.version", b"7"),
    ("features", b"group.version", b"x"),
]


class Brokers:
    """A broker's store and shared configs, in a keyspace with one good field in each hash."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.server = server
        self.prefix = prefix
        self.runner = asyncio.Runner()
        for name, (field, value) in GOOD.items():
            server.client.hset(self.key(name), field, value)
        self.cluster = f"{{{prefix}}}:cluster"
        server.client.hset(self.cluster, "id", "cluster")
        self.store = self.run(
            Store.open(
                server.url,
                Keyspace(prefix),
                node_id=1,
                endpoint=Address("localhost", 9001),
                lease_ms=LEASE_MS,
                config_problem=config_problem,
            )
        )
        self.security = SharedConfigs(
            self.store.commands,
            Authorizer(set()),
            Credentials(),
            ClientQuotas(),
            OwnConfigs(),
            LiveConfig(Config()),
        )
        assert self.store.membership is not None
        self.membership = self.store.membership
        self.run(self._begin())

    async def _begin(self) -> None:
        self.membership.begin()

    def key(self, name: str) -> str:
        return f"{{{self.prefix}}}:{name}"

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def follow(self) -> None:
        """Apply the changes of other brokers, like a broker."""
        self.server.client.hincrby(self.cluster, "catalogue", 1)
        self.server.client.hincrby(self.cluster, "security", 1)
        await self.membership.refresh()
        await self.membership.refresh()
        await self.security.refresh()

    def check_good(self) -> None:
        """Check that the good fields are in force."""
        topic = self.store.catalogue.get("good")
        assert topic is not None
        assert topic.configs == {"retention.ms": "1000"}
        assert ("alice", ScramMechanism.SHA_256) in self.security.credentials.scram
        assert self.security.authorizer is not None
        assert ACL in self.security.authorizer.acls
        assert self.security.quotas.values[(("user", "alice"),), "producer_byte_rate"] == 1024.0
        assert self.security.group_configs.of("group") == {"consumer.session.timeout.ms": "50000"}
        assert self.security.live.now.log_retention_ms == 5000
        assert self.security.features.levels["transaction.version"] == 1

    def diagnoses(self) -> list[str]:
        """The findings of `korvet doctor` that are not ok."""
        found = check_shared([self.server.client], self.prefix)
        return [finding.subject for finding in found if finding.state == "fault"]

    def close(self) -> None:
        self.run(self.store.close())
        self.runner.close()


@pytest.fixture
def brokers(server: Server, prefix: str) -> Any:
    made = Brokers(server, prefix)
    yield made
    made.close()


@pytest.mark.parametrize(("name", "field", "value"), MALFORMED)
def test_a_damaged_field_is_skipped_logged_once_and_diagnosed(
    brokers: Brokers, caplog: pytest.LogCaptureFixture, name: str, field: bytes, value: bytes
) -> None:
    client, key = brokers.server.client, brokers.key(name)
    with caplog.at_level(logging.ERROR):
        client.hset(key, field, value)
        if name != "brokers":
            # Brokers delete damaged entries of other brokers.
            assert len(brokers.diagnoses()) == 1
            assert brokers.diagnoses()[0].startswith(f"{key} ")
        for _ in range(3):
            brokers.run(brokers.follow())
            brokers.check_good()
            assert [each.node_id for each in brokers.membership.leadership.assignment.brokers] == [1]
            assert brokers.membership.leadership.leader_epoch_of("good", 0) is not None
    lines = [record for record in caplog.records if "is skipped" in record.getMessage()]
    assert len(lines) == 1
    assert key in lines[0].getMessage()
    if name == "brokers":
        assert client.hkeys(key) == [b"1"]
    else:
        client.hdel(key, field)
        brokers.run(brokers.follow())
        assert brokers.diagnoses() == []


def test_the_doctor_names_a_damaged_lease(server: Server, prefix: str) -> None:
    client = server.client
    client.hset(f"{{{prefix}}}:cluster", "id", "cluster")
    client.hset(f"{{{prefix}}}:brokers", "7", ENTRY + b"{}")
    faults = [each.subject for each in check_shared([client], prefix) if each.state == "fault"]
    assert faults == [f"{{{prefix}}}:brokers 7"]


def test_the_doctor_names_a_keyspace_of_another_format(brokers: Brokers) -> None:
    brokers.server.client.hset(brokers.cluster, "format", "2")
    assert brokers.diagnoses() == ["keyspace"]


def test_a_topic_with_a_bad_config_is_served_without_it(brokers: Brokers) -> None:
    bad = TOPIC | {
        "name": "bad",
        "configs": {"retention.ms": "x", "retention.bytes": "77", "new.config": "?"},
    }
    brokers.server.client.hset(brokers.key("topics"), "bad", msgspec.json.encode(bad))
    brokers.run(brokers.follow())
    topic = brokers.store.catalogue.get("bad")
    assert topic is not None
    assert topic.configs == {"retention.bytes": "77", "new.config": "?"}


def test_a_topic_with_a_bad_config_keeps_its_records(brokers: Brokers) -> None:
    """The damaged value may have meant to keep them forever."""
    bad: dict[str, Any] = TOPIC | {"name": "bad", "configs": {"retention.ms": "x"}}
    compacted = bad | {"name": "compacted", "configs": {"cleanup.policy": "compact", "retention.ms": "x"}}
    for topic in (bad, compacted):
        brokers.server.client.hset(brokers.key("topics"), str(topic["name"]), msgspec.json.encode(topic))
    brokers.run(brokers.follow())
    old = encode_append_records([(b"key", b"value", 5), (b"key", b"value", 5)])

    async def check() -> dict[str, int]:
        live, store = LiveConfig(Config()), brokers.store
        directory = TopicDirectory(store.catalogue, store.logs, live, None)  # type: ignore[arg-type]  # no topic is deleted here
        logs = {each.name: store.logs.get(each, 0) for each in store.catalogue.topics.values()}
        for log in logs.values():
            await append_own(log, old)
        later_ms = time.time_ns() // 1_000_000 + 10**10
        await apply_retention(store.commands, directory, live, directory.all(), later_ms)
        await LogCleaner(store.commands, store.logs, directory, live, lambda: later_ms).clean()
        return {name: (await log.bounds()).entries for name, log in logs.items()}

    assert brokers.run(check()) == {"good": 0, "bad": 2, "compacted": 2}


def test_a_coordinators_topic_stays_compacted_whatever_its_config_says(brokers: Brokers) -> None:
    """Redis keeps the newest entry ID of each key there, and coordinators load these entries."""

    async def check() -> None:
        made = await create_internal(brokers.store.catalogue, OFFSETS_TOPIC, 1)
        assert made.keeps_latest

    brokers.run(check())
    stored = msgspec.json.decode(brokers.server.client.hget(brokers.key("topics"), OFFSETS_TOPIC))
    stored["configs"]["cleanup.policy"] = "?"
    brokers.server.client.hset(brokers.key("topics"), OFFSETS_TOPIC, msgspec.json.encode(stored))
    brokers.run(brokers.follow())
    topic = brokers.store.catalogue.get(OFFSETS_TOPIC)
    assert topic is not None
    assert topic.keeps_latest
    assert topic.configs["cleanup.policy"] == "compact"


def test_users_and_acls_stay_in_force_when_the_keyspace_is_lost(brokers: Brokers) -> None:
    """Without any ACL every client may be allowed to do everything."""
    client, security = brokers.server.client, brokers.security
    brokers.run(security.refresh())
    keys = [brokers.cluster, *map(brokers.key, GOOD)]
    kept = {key: client.dump(key) for key in keys}
    client.delete(*keys)
    with pytest.raises(KeyspaceLost):
        brokers.run(security.refresh())
    brokers.check_good()
    assert not client.exists(*keys), "nothing is written"
    for key, dumped in kept.items():
        client.restore(key, 0, dumped)
    brokers.run(security.refresh())
    brokers.check_good()


def _mutated(good: bytes) -> st.SearchStrategy[bytes]:
    """A good value with some bytes replaced."""

    def cut(at: int, length: int, new: bytes) -> bytes:
        return good[:at] + new + good[at + length :]

    return st.builds(cut, st.integers(0, len(good)), st.integers(0, 8), st.binary(max_size=8))


def _fields() -> st.SearchStrategy[tuple[str, bytes, bytes]]:
    goods = {**GOOD, "brokers": (b"7", ENTRY + DESCRIPTION)}
    return st.one_of(
        *(
            st.tuples(
                st.just(name),
                st.one_of(st.binary(max_size=40), _mutated(field)),
                st.one_of(st.binary(max_size=80), _mutated(value)),
            )
            for name, (field, value) in goods.items()
        )
    )


@pytest.fixture
def fuzzed(brokers: Brokers) -> Callable[[str, bytes, bytes], None]:
    def put(name: str, field: bytes, value: bytes) -> None:
        key = brokers.key(name)
        good = GOOD.get(name, (b"1", b""))[0]
        if field == good:
            return
        brokers.server.client.hset(key, field, value)
        brokers.run(brokers.follow())
        brokers.check_good()
        list(check_shared([brokers.server.client], brokers.prefix))
        brokers.server.client.hdel(key, field)

    return put


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(_fields())
@example(("brokers", b"7", ENTRY.replace(b"99999999999999", b"9" * 400) + DESCRIPTION))
def test_arbitrary_bytes_in_any_field_end_nothing(
    fuzzed: Callable[[str, bytes, bytes], None], damage: tuple[str, bytes, bytes]
) -> None:
    fuzzed(*damage)


@pytest.mark.parametrize(
    "field", ["catalogue", "security", "assignment", "left", "next_producer_id", "topics"]
)
@pytest.mark.parametrize("value", [b"\xff", b"", b"-1", b"1e400", b"nan", b"9" * 40, b"5:9999999999999999"])
def test_damaged_counters_of_the_cluster_mend_themselves(brokers: Brokers, field: str, value: bytes) -> None:
    brokers.server.client.hset(brokers.cluster, field, value)

    async def check() -> None:
        store = brokers.store
        await brokers.membership.refresh()
        made = await store.catalogue.create("other", 2)
        await brokers.security.change_acls([ACL], [])
        assert await store.producer_ids.allocate() != await store.producer_ids.allocate()
        await brokers.membership.refresh()
        assert store.catalogue.get("other") == made
        async with asyncio.timeout(WAIT_S):
            await brokers.membership.wait_acknowledged(store.catalogue.known_version)
        await until_async(
            lambda: store.catalogue.applied_version == store.catalogue.known_version,
            WAIT_S,
            "the broker knows the newest version of the catalogue",
        )

    brokers.run(check())
    assert brokers.membership.leadership.leader_epoch_of("good", 0) is not None


async def test_a_new_broker_takes_over_a_node_id_whose_lease_is_damaged(server: Server, prefix: str) -> None:
    client = server.client
    far_ms = client.time()[0] * 1000 + 10**9
    client.hset(f"{{{prefix}}}:cluster", mapping={"id": "cluster", "assignment": "3"})
    client.hset(f"{{{prefix}}}:brokers", "1", b"%d token 3 -1 -1 {}" % far_ms)
    endpoint = Address("localhost", 9001)
    store = await Store.open(server.url, Keyspace(prefix), node_id=1, endpoint=endpoint, lease_ms=LEASE_MS)
    assert store.membership is not None
    assert store.membership.leadership.assignment.version == 4
    await store.close()


def test_a_full_redis_takes_limits_of_clients_within_the_allowance(brokers: Brokers) -> None:
    """Anybody who may set them could otherwise fill the memory by new names. Configs of brokers are few."""
    security, client = brokers.security, brokers.server.client
    by_user = {((("user", "bob"),), "producer_byte_rate"): 1.0}
    of_group = {"consumer.session.timeout.ms": "51000"}
    brokers.run(security.refresh())
    client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)
    try:
        brokers.run(security.change_quotas(by_user))
        brokers.run(security.change_group_configs("group", of_group))
        client.config_set("maxmemory", 1)
        for work in (security.change_quotas(by_user), security.change_group_configs("other", of_group)):
            with pytest.raises(AllowanceSpent):
                brokers.run(work)
        with pytest.raises(OutOfMemory):
            brokers.run(security.change_acls([msgspec.structs.replace(ACL, principal="User:bob")], []))
        brokers.run(security.change_broker_configs("1", {"log.retention.ms": "6000"}))
        brokers.run(security.change_quotas(dict.fromkeys(by_user)))
    finally:
        client.config_set("maxmemory", 0)
    assert not by_user.keys() & security.quotas.values.keys()
    assert security.group_configs.of("group") == of_group

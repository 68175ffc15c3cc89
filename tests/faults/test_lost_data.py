"""Redis has lost its last writes, everything, or the catalogue; or it may evict keys.

korvet never gives a producer id twice, writes nothing into another keyspace, does not create a topic again,
and reports what happened.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet as korvet_command
from tests.api.asking import connect
from tests.api.batches import batch
from tests.support.admin import create_topic
from tests.support.confluent import read_all
from tests.support.polling import until
from tests.support.ports import accepts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "orders"
WAIT_S = 20
NONE, UNKNOWN_TOPIC, NOT_LEADER, STORAGE_ERROR = 0, 3, 6, 56
CATALOGUE, CLUSTER = "{korvet}:topics", "{korvet}:cluster"


def asked(server: KorvetServer, name: str, version: int, **fields: Any) -> Any:
    client = connect(server)
    try:
        return client(name, version, **fields)
    finally:
        client.raw.socket.close()


def new_producer_id(server: KorvetServer) -> int:
    answer = asked(server, "InitProducerId", 4, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)
    assert answer.error_code == NONE
    return int(answer.producer_id)


def produce(server: KorvetServer, value: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> int:
    """Produce one record; returns its error code. producer: id, epoch, base sequence."""
    data = [{"index": 0, "records": batch([(b"k", value)], producer=producer)}]
    topics = [{"name": TOPIC, "partition_data": data}]
    answer = asked(server, "Produce", 9, acks=-1, timeout=5000, topic_data=topics)
    return int(answer.responses[0].partition_responses[0].error_code)


def partitions(server: KorvetServer) -> tuple[int, int]:
    """Metadata's error code and number of partitions of the topic, which the request may create."""
    found = asked(server, "Metadata", 9, topics=[{"name": TOPIC}], allow_auto_topic_creation=True).topics[0]
    return int(found.error_code), len(found.partitions)


def log_has(server: KorvetServer, text: str) -> None:
    until(lambda: text in server.tail(100_000), WAIT_S, f"the log says {text!r}")


def doctor(server: KorvetServer) -> str:
    done = CliRunner(env={}).invoke(korvet_command, ["doctor", "--data-dir", str(server.data_dir), "--json"])
    assert done.exit_code == 1
    return done.output


@pytest.fixture
def server(own_korvet: Callable[..., KorvetServer]) -> KorvetServer:
    started = own_korvet()
    create_topic(started.bootstrap, TOPIC, 3)
    return started


def test_a_producer_id_is_not_given_again_after_a_lost_tail(server: KorvetServer, tmp_path: Path) -> None:
    """The append-only file loses everything after the topic's creation, as with appendfsync=everysec."""
    files = server.data_dir / "appendonlydir"
    shutil.copytree(files, tmp_path / "earlier")
    first = new_producer_id(server)
    server.kill_both()
    shutil.rmtree(files)
    shutil.copytree(tmp_path / "earlier", files)
    server.restart()

    assert produce(server, b"first", (first, 0, 0)) == NONE
    second = new_producer_id(server)
    assert produce(server, b"second", (second, 0, 0)) == NONE
    assert [each.record.value for each in read_all(server.bootstrap, TOPIC)] == [b"first", b"second"]
    assert first != second


def test_nothing_is_served_or_written_after_flushall_until_it_is_restored(server: KorvetServer) -> None:
    redis = server.redis
    assert produce(server, b"before") == NONE
    kept = {key: redis.dump(key) for key in redis.scan_iter()}
    redis.flushall()
    log_has(server, "Redis does not hold the keyspace 'korvet'")

    assert produce(server, b"lost") in {NOT_LEADER, STORAGE_ERROR}
    assert partitions(server)[1] == 3, "the topic is not made anew"
    created = asked(
        server,
        "CreateTopics",
        5,
        topics=[{"name": "new", "num_partitions": 1, "replication_factor": -1}],
        timeout=5000,
    )
    assert created.topics[0].error_code == STORAGE_ERROR
    assert not redis.exists(CATALOGUE, CLUSTER, "korvet:new:0")
    assert server.process.running

    for key, dumped in kept.items():
        redis.restore(key, 0, dumped, replace=True)
    until(lambda: produce(server, b"after") == NONE, WAIT_S, "the broker serves again")
    assert [each.record.value for each in read_all(server.bootstrap, TOPIC)] == [b"before", b"after"]
    assert partitions(server) == (NONE, 3)


def test_a_lost_catalogue_is_no_empty_one(server: KorvetServer) -> None:
    redis = server.redis
    redis.rename(CATALOGUE, "elsewhere")
    log_has(server, "the catalogue {korvet}:topics of 2 topics is gone")
    assert partitions(server)[1] == 3
    assert produce(server, b"lost") in {NOT_LEADER, STORAGE_ERROR}
    assert "the catalogue {korvet}:topics of 2 topics is gone" in doctor(server)
    redis.rename("elsewhere", CATALOGUE)
    until(lambda: produce(server, b"after") == NONE, WAIT_S, "the broker serves again")


def test_another_keyspace_in_its_place_is_not_written_to(server: KorvetServer) -> None:
    redis = server.redis
    own = redis.hget(CLUSTER, "id")
    redis.hset(CLUSTER, "id", "another")
    log_has(server, "{korvet}:cluster has another cluster id, another and not")
    assert produce(server, b"lost") in {NOT_LEADER, STORAGE_ERROR}
    redis.hset(CLUSTER, "id", own)
    until(lambda: produce(server, b"after") == NONE, WAIT_S, "the broker serves again")


def test_topics_without_their_cluster_are_not_opened(server: KorvetServer) -> None:
    server.redis.rename(CLUSTER, "elsewhere")
    log_has(server, "the cluster id is gone")
    assert "2 topics, but no cluster id in {korvet}:cluster" in doctor(server)
    assert server.stop() == 0
    server.spawn()
    until(lambda: not server.process.running, WAIT_S, "korvet refuses to start")
    assert server.process.exit_code == 1
    assert "has topics but no cluster id" in server.tail()
    assert "Traceback" not in server.tail()
    assert not accepts(server.host, server.port)


def test_an_eviction_policy_set_at_run_time_is_logged_once_and_diagnosed(server: KorvetServer) -> None:
    redis = server.redis
    redis.config_set("maxmemory-policy", "allkeys-lru")
    log_has(
        server, "may evict our keys, which loses records and commits: its maxmemory-policy is allkeys-lru"
    )
    redis.set("filler", b"x" * 4_000_000)
    redis.config_set("maxmemory", int(redis.info("memory")["used_memory"]) - 1_000_000)
    until(lambda: redis.ping() and redis.info("stats")["evicted_keys"], WAIT_S, "the server evicts keys")
    redis.config_set("maxmemory", 0)
    redis.config_set("maxmemory-policy", "noeviction")
    log_has(server, "no longer evicts our keys")
    log_has(server, "keys: records and commits may be lost")
    assert server.tail(100_000).count("may evict our keys") == 1
    assert "keys evicted since the server started" in doctor(server)

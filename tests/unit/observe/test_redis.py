"""The families of Redis, from what servers report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from korvet.observe import redis
from korvet.redis.info import parse_info
from korvet.redis.link import LinkCounts
from korvet.redis.replication import parse_replication
from korvet.redis.server_watch import Reading
from tests.unit.observe.pages import page_of

INFO = b"""# Server\r
redis_version:7.2.4\r
valkey_version:9.1.2\r
uptime_in_seconds:60\r
# Memory\r
used_memory:1000\r
maxmemory:2000\r
maxmemory_policy:allkeys-lru\r
mem_fragmentation_ratio:1.25\r
# Persistence\r
aof_enabled:1\r
aof_last_write_status:err\r
rdb_last_bgsave_status:ok\r
# Stats\r
evicted_keys:3\r
latest_fork_usec:1500\r
total_commands_processed:unknown\r
# Keyspace\r
db0:keys=5,expires=1,avg_ttl=0\r
db12:keys=7,expires=0,avg_ttl=0\r
"""
REPLICATION = b"""role:master\r
connected_slaves:2\r
slave0:ip=10.0.0.2,port=6379,state=online,offset=90,lag=1\r
slave1:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=0\r
master_repl_offset:100\r
"""


def test_what_servers_report() -> None:
    watch: Any = SimpleNamespace(readings={"one:6379": Reading(parse_info(INFO), 100.0)})
    page = page_of(redis.collect_info(watch, lambda: 102.5))
    server = "{server=one:6379}"
    expected = {
        "info_age_seconds": 2.5,
        "memory_used_bytes": 1000,
        "memory_max_bytes": 2000,
        "memory_fragmentation_ratio": 1.25,
        "evicts_keys": 1,
        "evicted_keys_total": 3,
        "aof_enabled": 1,
        "uptime_seconds": 60,
        "keys": 12,
        "expiring_keys": 1,
    }
    assert {name: page[f"korvet_redis_{name}{server}"] for name in expected} == expected
    assert page[f"korvet_redis_last_fork_seconds{server}"] == pytest.approx(0.0015)
    assert page["korvet_redis_server_info{program=valkey,server=one:6379,version=9.1.2}"] == 1
    written = {
        kind: page.get(f"korvet_redis_persistence_ok{{kind={kind},server=one:6379}}")
        for kind in ("aof", "aof_rewrite", "rdb")
    }
    assert written == {"aof": 0, "aof_rewrite": None, "rdb": 1}
    # What a server lacks or does not report as a number has no sample.
    assert not [name for name in page if "commands" in name or "peak" in name]


def test_servers_and_their_replicas() -> None:
    def server(address: str, replication: Any, **facts: Any) -> Any:
        module = SimpleNamespace(used=facts.pop("module_used", False))
        return SimpleNamespace(address=address, replication=replication, module=module, **facts)

    servers = [
        server("two:1", None, connected=False, silent=True),
        server("one:1", parse_replication(REPLICATION), connected=True, silent=False, module_used=True),
    ]
    servers = [_Hashable(**vars(each)) for each in servers]
    router: Any = SimpleNamespace(servers=lambda: servers)
    page = page_of(redis.collect_servers(router))
    assert (page["korvet_redis_up{server=one:1}"], page["korvet_redis_up{server=two:1}"]) == (1, 0)
    assert (page["korvet_redis_silent{server=one:1}"], page["korvet_redis_silent{server=two:1}"]) == (0, 1)
    assert page["korvet_redis_module_used{server=one:1}"] == 1
    assert page["korvet_redis_module_used{server=two:1}"] == 0
    assert page["korvet_redis_replicas{server=one:1}"] == 2
    assert page["korvet_redis_replicas_in_sync{server=one:1}"] == 1
    assert "korvet_redis_replicas{server=two:1}" not in page
    assert page["korvet_redis_replica_lag_bytes{replica=10.0.0.2:6379,server=one:1}"] == 10
    assert page["korvet_redis_replica_lag_bytes{replica=10.0.0.3:6379,server=one:1}"] == 100
    assert page["korvet_redis_replica_lag_seconds{replica=10.0.0.2:6379,server=one:1}"] == 1


def test_replicas_behind_one_address_have_one_series() -> None:
    """Containers may give several replicas the address of their gateway. The worst one counts."""
    reply = b"role:master\r\nconnected_slaves:2\r\nmaster_repl_offset:100\r\n" + b"".join(
        b"slave%d:ip=172.17.0.1,port=6379,state=online,offset=%d,lag=%d\r\n" % each
        for each in ((0, 80, 0), (1, 90, 5))
    )
    server = _Hashable(
        address="one:1",
        replication=parse_replication(reply),
        module=SimpleNamespace(used=False),
        connected=True,
        silent=False,
    )
    router: Any = SimpleNamespace(servers=lambda: [server])
    page = page_of(redis.collect_servers(router))
    assert page["korvet_redis_replicas{server=one:1}"] == 2
    assert page["korvet_redis_replica_lag_bytes{replica=172.17.0.1:6379,server=one:1}"] == 20
    assert page["korvet_redis_replica_lag_seconds{replica=172.17.0.1:6379,server=one:1}"] == 5


class _Hashable(SimpleNamespace):
    __hash__ = object.__hash__


def test_links_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = LinkCounts(), LinkCounts()
    monkeypatch.setattr(redis, "LINKS", {"write": write, "read": read})
    write.round_trips.observe(0.003)
    write.connected, write.lost = 2, 1
    read.round_trips.observe(0.2)
    page = page_of(redis.collect_links())
    assert page["korvet_redis_round_trip_seconds_count{link=read}"] == 1
    assert page["korvet_redis_round_trip_seconds_bucket{le=0.005,link=write}"] == 1
    assert page["korvet_redis_round_trip_seconds_sum{link=write}"] == pytest.approx(0.003)
    assert page["korvet_redis_connections_total{link=write}"] == 2
    assert page["korvet_redis_connections_lost_total{link=write}"] == 1

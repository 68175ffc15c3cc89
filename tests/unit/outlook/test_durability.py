"""What failures can lose, from facts of servers and levels of topics: each row of the table."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from korvet.outlook import durability
from korvet.outlook.durability import (
    FAULT,
    OK,
    WARNING,
    Facts,
    Failure,
    Setup,
    describe_replicas,
    doubtful_writes,
    losses_of,
    outlooks,
    refused_writes,
    refusing_topics,
)
from korvet.outlook.findings import durability_findings
from korvet.redis.barrier import Level
from korvet.redis.errors import StoreError
from korvet.redis.replication import Replica, parse_replication
from korvet.redis.server_facts import ServerFacts, facts_of
from korvet.redis.slots import count_replicas

ALONE, TWO, THREE, FLUSHED = Level(0, False), Level(1, False), Level(2, False), Level(0, True)
BROKER, REDIS, POWER, DISK, MEMORY, REPLICA, PLANNED, PRIMARY, SPLIT, DELETED = Failure

SAFE = facts_of(
    b"aof_enabled:1\r\naof_last_write_status:ok\r\nmaxmemory:1000\r\nmaxmemory_policy:noeviction\r\n",
    {
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "save": "",
        "min-replicas-to-write": "0",
        "min-replicas-max-lag": "10",
    },
)
NEAR = Replica("10.0.0.1", 6379, "online", offset=900, lag_s=1)
LATE = Replica("10.0.0.3", 6379, "online", offset=800, lag_s=5)
COPYING = Replica("10.0.0.2", 6379, "wait_bgsave", offset=0, lag_s=0)


def with_replicas(facts: ServerFacts, *replicas: Replica) -> ServerFacts:
    replication = msgspec.structs.replace(facts.replication, offset=1000, replicas=replicas)
    return msgspec.structs.replace(facts, replication=replication)


PAIR = with_replicas(SAFE, NEAR)
CLUSTER = msgspec.structs.replace(PAIR, cluster=True, node_timeout_s=15.0, replica_validity_s=160.0)


def but(facts: ServerFacts, **changes: Any) -> ServerFacts:
    return msgspec.structs.replace(facts, **changes)


def setup(*levels: Level, **more: Any) -> Setup:
    return Setup({level: levels.count(level) for level in levels}, **more)


NO_FILE: dict[str, Any] = {"append_only": False}
EVERYSEC = {"appendfsync": "everysec", "awaits_everysec": True}
EARLY = {"appendfsync": "everysec", "awaits_everysec": False}
ON_REWRITE = {"no_appendfsync_on_rewrite": True}
NO_CONFIGS = {"appendfsync": None, "save": None}
BEGINS = {"append_only_begins": True, "rewrites": True}
UNLIMITED = {"maxmemory": 0}
NO_FSYNC = {"appendfsync": "no"}
SNAPSHOTS = NO_FILE | {"save": "60 1"}
EVICTS = {"maxmemory_policy": "allkeys-lru"}
NEEDS_ONE, NEEDS_UNKNOWN = {"min_replicas_to_write": 1}, {"min_replicas_to_write": None}
THREE_SERVERS = with_replicas(PAIR, NEAR, NEAR)
ONE, SYNCED, EMBEDDED = setup(ALONE), setup(FLUSHED), setup(ALONE, embedded=True)
BY_SENTINEL = setup(ALONE, sentinel=True)
AS_RESTART = "the same as if the Redis process dies and restarts"
RECEIVED = "what the replica that takes over has not received is lost"
ACKNOWLEDGES = "what the old primary acknowledges"
KEPT = "nothing that was acknowledged with acks=all is lost"
TABLE: list[tuple[Failure, ServerFacts, dict[str, Any], Setup, str, str]] = [
    (BROKER, SAFE, {}, ONE, OK, "nothing is lost: Redis holds"),
    (BROKER, SAFE, {}, EMBEDDED, OK, f"may exit with it: {AS_RESTART}"),
    (BROKER, SAFE, EVERYSEC, EMBEDDED, WARNING, f"may exit with it: {AS_RESTART}"),
    (REDIS, SAFE, {}, ONE, OK, "nothing is lost: it writes"),
    (REDIS, SAFE, NO_FSYNC, ONE, OK, "nothing is lost: it writes"),
    (REDIS, SAFE, EVERYSEC, ONE, WARNING, "up to 2 s of writes are lost if a flush was"),
    (REDIS, SAFE, {"append_only_fails": True}, ONE, FAULT, "since the last write to the append-only"),
    (REDIS, SAFE, BEGINS, SYNCED, WARNING, "everything is lost if appendonly was set to yes"),
    (REDIS, SAFE, {**BEGINS, "rewrite_fails": True}, ONE, FAULT, "the last rewrite of that file failed"),
    (REDIS, SAFE, BEGINS, EMBEDDED, OK, "nothing is lost: it writes"),
    (REDIS, SAFE, NO_CONFIGS, ONE, WARNING, "unknown: the Redis user may not run CONFIG GET; give"),
    (REDIS, SAFE, {**NO_FILE, **NO_CONFIGS}, ONE, WARNING, "unknown: the Redis user may not"),
    (REDIS, SAFE, SNAPSHOTS, ONE, WARNING, "since the last snapshot is lost, now 0 ch"),
    (REDIS, PAIR, NO_FILE, setup(TWO), FAULT, "keeps no files; replicas then copy the empty server"),
    (POWER, SAFE, {}, ONE, OK, "nothing is lost: each write is flushed before the reply"),
    (POWER, SAFE, EVERYSEC, ONE, WARNING, "up to 2 s of writes are lost (appendfsync everysec); set"),
    (POWER, SAFE, {**EVERYSEC, **ON_REWRITE}, ONE, WARNING, "up to about 30 s during a rewrite"),
    (POWER, SAFE, NO_FSYNC, SYNCED, WARNING, "about 30 s of writes are lost (appendfsync no)"),
    (POWER, SAFE, ON_REWRITE, ONE, WARNING, "up to about 30 s of writes are lost during a rewrite"),
    (POWER, SAFE, ON_REWRITE, SYNCED, OK, KEPT),
    (POWER, SAFE, NO_CONFIGS, ONE, WARNING, AS_RESTART),
    (POWER, SAFE, NO_FILE, ONE, WARNING, AS_RESTART),
    (DISK, SAFE, EVERYSEC, setup(ALONE, embedded=True, reserve=True), OK, "writes are refused before"),
    (DISK, SAFE, {}, ONE, OK, "nothing is lost: the server exits"),
    (DISK, SAFE, BEGINS, ONE, WARNING, f"if the server exits, {AS_RESTART}"),
    (DISK, SAFE, NO_FSYNC, SYNCED, WARNING, "the last ones before that are lost if it exits"),
    (DISK, SAFE, NO_CONFIGS, ONE, WARNING, "unknown"),
    (DISK, SAFE, NO_FILE, ONE, OK, "nothing is lost: the server keeps no files"),
    (DISK, SAFE, SNAPSHOTS, ONE, WARNING, "fail, and the server refuses writes; if it"),
    (DISK, SAFE, {**SNAPSHOTS, "stop_writes_on_bgsave_error": False}, ONE, WARNING, "writes go on (stop-"),
    (MEMORY, SAFE, {}, ONE, OK, "nothing is lost: the server refuses writes (noeviction)"),
    (MEMORY, SAFE, {"maxmemory_policy": "volatile-lru", "evicted_keys": 7}, ONE, OK, "nothing is lost"),
    (MEMORY, SAFE, EVICTS, ONE, FAULT, "deletes topics, groups and commits"),
    (MEMORY, SAFE, UNLIMITED | EVICTS, ONE, FAULT, "at maxmemory, the"),
    (MEMORY, SAFE, {"evicted_keys": 7}, ONE, FAULT, "7 keys evicted since the server started"),
    (MEMORY, SAFE, UNLIMITED, ONE, OK, f"no maxmemory (set one): {AS_RESTART}"),
    (MEMORY, SAFE, UNLIMITED | NO_FILE, ONE, WARNING, f"no maxmemory (set one): {AS_RESTART}"),
    (REPLICA, PAIR, {}, ONE, OK, "nothing is lost, and writes go on"),
    (REPLICA, PAIR, {}, setup(ALONE, TWO), OK, "but 1 of 2 topics refuse records with acks=all"),
    (REPLICA, THREE_SERVERS, {}, setup(TWO), OK, "writes go on"),
    (REPLICA, with_replicas(PAIR, COPYING), {}, setup(ALONE, TWO), OK, "1 of 2 topics refuse"),
    (REPLICA, PAIR, NEEDS_ONE, ONE, OK, "but the server refuses all writes"),
    (REPLICA, PAIR, NEEDS_UNKNOWN, ONE, OK, "whether writes go on is unknown"),
    (PLANNED, PAIR, {}, ONE, OK, "nothing is lost: FAILOVER waits"),
    (PLANNED, CLUSTER, {}, ONE, OK, "nothing is lost: CLUSTER FAILOVER waits"),
    (PLANNED, PAIR, {}, BY_SENTINEL, WARNING, "more than 0.1 s late has not received is lost"),
    (PLANNED, PAIR, {}, setup(TWO, sentinel=True), OK, KEPT),
    (PRIMARY, SAFE, {}, ONE, WARNING, "no replica; attach a replica that can be promoted"),
    (PRIMARY, SAFE, {}, EMBEDDED, WARNING, "keep backups on another machine, or use"),
    (PRIMARY, SAFE, {}, setup(ALONE, sentinel=True, named_replicas=1), WARNING, f"{RECEIVED}; set"),
    (PRIMARY, PAIR, {}, ONE, WARNING, f"{RECEIVED} (without Sentinel, promote"),
    (PRIMARY, CLUSTER, {}, ONE, WARNING, f"{RECEIVED}, up to about 160 s of writes"),
    (PRIMARY, CLUSTER, {"replica_validity_s": math.inf}, ONE, WARNING, f"{RECEIVED}, however old"),
    (PRIMARY, CLUSTER, {"replica_validity_s": None}, ONE, WARNING, f"{RECEIVED}; set"),
    (SPLIT, PAIR, {}, ONE, WARNING, f"{ACKNOWLEDGES} for as long as clients reach it is lost"),
    (SPLIT, PAIR, NEEDS_ONE, ONE, WARNING, f"{ACKNOWLEDGES} for up to 10 s (min-"),
    (SPLIT, THREE_SERVERS, NEEDS_ONE, ONE, WARNING, "for as long as clients reach it"),
    (SPLIT, PAIR, NEEDS_UNKNOWN, ONE, WARNING, "until it stops (min-replicas-max-lag"),
    (SPLIT, CLUSTER, {}, ONE, WARNING, f"{ACKNOWLEDGES} for about 15 s (cluster-node-timeout)"),
    (SPLIT, CLUSTER, {"node_timeout_s": None}, ONE, WARNING, "for the cluster's timeout"),
    (DELETED, SAFE, {}, ONE, WARNING, "everything since the last backup is lost, on replicas too"),
]


@pytest.mark.parametrize(("failure", "facts", "changes", "of", "state", "text"), TABLE)
def test_each_row(
    failure: Failure, facts: ServerFacts, changes: dict[str, Any], of: Setup, state: str, text: str
) -> None:
    found = losses_of(but(facts, **changes), of)[failure]
    assert found[0] == state
    assert text in found[1]


def test_each_row_has_an_example() -> None:
    """And nothing is to change if nothing can be lost."""
    found = set()
    for failure, facts, changes, of, _, _ in TABLE:
        known = Facts(but(facts, **changes), of)
        rows = durability.TABLE[failure]
        found.add((failure, next(number for number, row in enumerate(rows) if row.holds(known))))
        for state, text in losses_of(but(facts, **changes), of).values():
            assert state != OK or "; set " not in text
    assert found == {
        (failure, number) for failure, rows in durability.TABLE.items() for number in range(len(rows))
    }


@pytest.mark.parametrize("facts", [PAIR, CLUSTER])
def test_every_kind_of_failure_has_a_line_if_there_are_replicas(facts: ServerFacts) -> None:
    assert list(losses_of(facts, setup(TWO))) == list(Failure)
    assert not losses_of(SAFE, setup(TWO)).keys() & {REPLICA, PLANNED, SPLIT}


@pytest.mark.parametrize(
    ("changes", "levels", "state", "advice"),
    [
        (EVERYSEC, [ALONE], WARNING, "; set appendfsync always, or acks.all.fsync"),
        (
            EVERYSEC,
            [FLUSHED],
            OK,
            f"{KEPT}; with acks=1, up to 2 s of writes are lost (appendfsync everysec)",
        ),
        (EVERYSEC, [FLUSHED, ALONE, FLUSHED], WARNING, "; set appendfsync always, or acks.all.fsync"),
        (EARLY, [ALONE], WARNING, "everysec); set appendfsync always"),
        (EARLY, [FLUSHED], WARNING, "too early (redis/redis#13793); set appendfsync always"),
        (EVERYSEC | ON_REWRITE, [ALONE], WARNING, "no-appendfsync-on-rewrite no, or acks.all.fsync"),
        (EARLY | ON_REWRITE, [FLUSHED], WARNING, "; set appendfsync always and no-appendfsync-on-rewrite no"),
        (ON_REWRITE, [ALONE], WARNING, "; set no-appendfsync-on-rewrite no, or acks.all.fsync"),
        (EVERYSEC | {"has_waitaof": False}, [FLUSHED], WARNING, "; set appendfsync always"),
        ({"appendfsync": "no"}, [FLUSHED], WARNING, "; set appendfsync always"),
    ],
)
def test_what_keeps_records_if_power_is_lost(
    changes: dict[str, Any], levels: list[Level], state: str, advice: str
) -> None:
    found = losses_of(but(SAFE, **changes), setup(*levels))
    assert found[POWER][0] == state
    assert found[POWER][1].endswith(advice)


@pytest.mark.parametrize("changes", [EVERYSEC, EARLY])
@pytest.mark.parametrize("failure", [REDIS, DISK])
def test_a_file_that_is_written_is_enough_for_a_restart(failure: Failure, changes: dict[str, Any]) -> None:
    facts = but(SAFE, **changes)
    assert losses_of(facts, setup(FLUSHED))[failure][0] == OK
    state, text = losses_of(facts, setup(FLUSHED, ALONE, FLUSHED))[failure]
    assert state == WARNING
    assert text.startswith("nothing that was acknowledged with acks=all to 2 of 3 topics is lost; else ")
    assert text.endswith("; set appendfsync always, or acks.all.fsync")
    embedded = losses_of(facts, setup(ALONE, embedded=True))[failure][1]
    assert embedded.endswith("; set embedded.appendfsync always, or acks.all.fsync")


@pytest.mark.parametrize("appendfsync", ["always", "everysec", "no"])
def test_a_restart_during_a_rewrite_may_load_a_file_from_before_appendonly_no(appendfsync: str) -> None:
    facts, of = but(SAFE, appendfsync=appendfsync, rewrites=True), setup(ALONE)
    switched = "; if appendonly was set to yes just now, everything since it was set to no is lost"
    before, found = losses_of(but(facts, rewrites=False), of), losses_of(facts, of)
    for failure in (REDIS, POWER, DISK):
        assert found[failure] == (before[failure][0], before[failure][1] + switched)
    assert losses_of(facts, setup(ALONE, embedded=True)) == losses_of(
        but(facts, rewrites=False), setup(ALONE, embedded=True)
    )
    state, text = losses_of(but(facts, rewrite_fails=True), of)[REDIS]
    assert state == FAULT
    assert text.endswith(f"{switched}; the last rewrite of that file failed, see the server's log")
    assert losses_of(but(facts, rewrites=False, rewrite_fails=True), of) == before


@pytest.mark.parametrize("failure", [PRIMARY, SPLIT])
@pytest.mark.parametrize("facts", [PAIR, CLUSTER])
def test_a_primary_that_is_lost(facts: ServerFacts, failure: Failure) -> None:
    attached = f"{KEPT} if a replica that is attached now takes over; with acks=1"
    state, text = losses_of(facts, setup(ALONE))[failure]
    assert (state, "set min.insync.replicas 2 " in text) == (WARNING, True)
    state, text = losses_of(facts, setup(TWO))[failure]
    assert (state, text.startswith(attached)) == (OK, True)
    assert losses_of(facts, setup(TWO, ALONE))[failure][0] == WARNING
    both = with_replicas(facts, NEAR, NEAR)
    assert losses_of(both, setup(TWO))[failure][0] == WARNING, "the other replica may take over"
    assert losses_of(both, setup(THREE))[failure][0] == OK


@pytest.mark.parametrize(
    ("failure", "facts", "more"),
    [
        (PRIMARY, PAIR, {"sentinel": True, "named_replicas": 2}),
        (SPLIT, PAIR, {"sentinel": True, "named_replicas": 2}),
        (PLANNED, PAIR, {"sentinel": True, "named_replicas": 2}),
        (PRIMARY, but(CLUSTER, named_replicas=2), {}),
        (SPLIT, but(CLUSTER, named_replicas=2), {}),
    ],
)
def test_a_replica_that_is_not_attached_may_take_over(
    failure: Failure, facts: ServerFacts, more: dict[str, Any]
) -> None:
    state, text = losses_of(facts, setup(TWO, **more))[failure]
    assert (state, "set min.insync.replicas 3 " in text) == (WARNING, True)
    state, text = losses_of(facts, setup(THREE, **more))[failure]
    assert (state, "attached now" in text) == (OK, False)


@pytest.mark.parametrize(
    ("base", "running", "scheduled", "begins"),
    [(0, 1, 0, True), (0, 0, 1, True), (0, 0, 0, False), (89, 1, 0, False), (89, 0, 1, False)],
)
def test_when_the_first_append_only_file_is_incomplete(
    base: int, running: int, scheduled: int, begins: bool
) -> None:
    rewrite = f"aof_rewrite_in_progress:{running}\r\naof_rewrite_scheduled:{scheduled}\r\n"
    info = f"aof_enabled:1\r\n{rewrite}aof_base_size:{base}\r\n"
    assert facts_of(info.encode(), {}).append_only_begins is begins
    assert facts_of(info.encode(), {}).rewrites is bool(running or scheduled)
    assert not facts_of(rewrite.encode(), {}).append_only_begins, "there is no append-only file"


def test_replicas_now() -> None:
    assert describe_replicas(SAFE.replication, 0) == "none"
    assert describe_replicas(SAFE.replication, 1) == (
        "0 of 1 in sync, 1 not attached (SENTINEL RESET or CLUSTER FORGET forgets those that are gone for "
        "good)"
    )
    far = msgspec.structs.replace(NEAR, offset=400, lag_s=7)
    found = describe_replicas(with_replicas(PAIR, NEAR, COPYING, far).replication, 3)
    assert found == "2 of 3 in sync, at most 600 bytes behind, the last report 7 s ago"


def test_topics_that_refuse_records() -> None:
    levels = Setup({ALONE: 3, TWO: 2, FLUSHED: 1})
    assert not refusing_topics(PAIR, levels)
    short = "2 of 6 topics refuse records: they need more replicas than 0 (min.insync.replicas)"
    assert refusing_topics(with_replicas(PAIR, COPYING), levels) == short
    flushed = "1 of 6 topics refuse records: they need an append-only file (acks.all.fsync)"
    assert refusing_topics(but(SAFE, append_only=False), levels) == f"{short}; {flushed}"


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"append_only": False}, "an append-only file"),
        ({"appendfsync": "no"}, "appendfsync always"),
        ({"appendfsync": "no", "awaits_everysec": True}, "appendfsync always or everysec"),
        ({"has_waitaof": False}, "Redis 7.2, or Valkey"),
    ],
)
def test_topics_that_ask_for_a_flush_of_a_server_that_cannot_confirm_it(
    changes: dict[str, Any], needed: str
) -> None:
    facts = but(SAFE, **changes)
    assert refusing_topics(facts, setup(ALONE, FLUSHED)) == (
        f"1 of 2 topics refuse records: they need {needed} (acks.all.fsync)"
    )
    assert not refusing_topics(facts, setup(ALONE))
    assert not refusing_topics(but(SAFE, appendfsync=None), setup(FLUSHED)), "unknown"


@pytest.mark.parametrize(
    ("info", "has_waitaof", "awaits_everysec"),
    [
        (b"redis_version:7.0.15\r\n", False, False),
        (b"redis_version:7.2.0\r\n", True, True),
        (b"redis_version:7.4.1\r\n", True, False),
        (b"redis_version:8.0.0\r\n", True, True),
        (b"redis_version:10.0.0\r\n", True, True),
        (b"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n", True, False),
        (b"", True, False),
    ],
)
def test_which_servers_can_confirm_flushes(info: bytes, has_waitaof: bool, awaits_everysec: bool) -> None:
    facts = facts_of(info, {})
    assert (facts.has_waitaof, facts.awaits_everysec) == (has_waitaof, awaits_everysec)


def test_a_server_that_refuses_all_writes() -> None:
    of, needs_one = setup(ALONE), but(SAFE, min_replicas_to_write=1, min_replicas_max_lag_s=10)
    refused = "the server refuses all writes: it has 0 of 1 replicas (min-replicas-to-write)"
    assert refused_writes(needs_one, of) == refused
    assert refused_writes(with_replicas(needs_one, COPYING), of) == refused
    assert refused_writes(with_replicas(but(needs_one, min_replicas_max_lag_s=3), LATE), of) == refused
    assert not refused_writes(with_replicas(needs_one, LATE), of)
    assert not refused_writes(SAFE, of)
    assert not refused_writes(but(SAFE, min_replicas_to_write=None, min_replicas_max_lag_s=None), of)
    assert refused_writes(needs_one, setup(embedded=True)) == refused
    assert "its disk is full" in refused_writes(needs_one, setup(embedded=True, reserve=True))


def test_a_server_whose_snapshots_fail_refuses_all_writes() -> None:
    of, fails = setup(ALONE), but(SAFE, snapshot_fails=True, save="3600 1")
    assert refused_writes(fails, of).startswith("the server refuses all writes: its last snapshot failed")
    assert not refused_writes(but(fails, save=""), of), "the snapshot was for a replica or a backup"
    assert not refused_writes(but(fails, stop_writes_on_bgsave_error=False), of)
    unknown = but(fails, save=None)
    assert not refused_writes(unknown, of)
    assert "whether the server refuses writes is unknown" in doubtful_writes(unknown)
    assert not doubtful_writes(fails)
    assert not doubtful_writes(but(unknown, snapshot_fails=False))
    assert facts_of(b"rdb_last_bgsave_status:err\r\n", {}).snapshot_fails


@pytest.mark.parametrize(
    ("good", "count", "refuses", "lost"),
    [
        ("min_slaves_good_slaves:0\r\n", 1, True, "the server refuses all writes"),
        ("min_slaves_good_slaves:1\r\n", 1, False, "the server refuses all writes"),
        ("min_slaves_good_slaves:2\r\n", 2, False, "whether writes go on is unknown"),
        ("", 2, False, "writes go on"),
    ],
)
def test_writes_that_need_replicas_if_the_user_may_not_read_configs(
    good: str, count: int, refuses: bool, lost: str
) -> None:
    facts = with_replicas(facts_of(f"connected_slaves:{count}\r\n{good}".encode(), {}), *[NEAR] * count)
    assert ("the server refuses all writes: it has none" in refused_writes(facts, setup(ALONE))) is refuses
    _, text = losses_of(facts, setup(ALONE))[REPLICA]
    assert lost in text
    assert text.endswith("and writes go on") is (not good)


def test_servers_with_the_same_loss_share_a_line() -> None:
    servers = {"a:1": SAFE, "b:1": but(SAFE, appendfsync="everysec"), "c:1": SAFE}
    subjects = [each.subject for each in outlooks(servers, setup(ALONE), 3)]
    assert subjects[:3] == ["replicas, a:1", "replicas, b:1", "replicas, c:1"]
    restart = f"if {REDIS.value}"
    assert subjects[4:6] == [f"{restart}, a:1, c:1", f"{restart}, b:1"]
    assert subjects[-1] == f"if {DELETED.value}"


def test_the_only_server_that_reports_its_facts_is_named() -> None:
    found = {"a:1": SAFE, "b:1": StoreError("it does not answer")}
    subjects = [each.subject for each in durability_findings(found, setup(ALONE))]
    assert subjects[:2] == ["durability, b:1", "replicas, a:1"]
    assert next(durability_findings({"a:1": SAFE}, setup(ALONE))).subject == "replicas"


def test_facts_of_a_primary_in_a_cluster() -> None:
    facts = facts_of(
        b"cluster_enabled:1\r\n",
        {
            "cluster-node-timeout": "15000",
            "cluster-replica-validity-factor": "10",
            "repl-ping-replica-period": "10",
            "repl-timeout": "60",
        },
    )
    # A replica counts from when it has noticed that it is cut off, up to repl-timeout after the last data.
    assert (facts.cluster, facts.node_timeout_s, facts.replica_validity_s) == (True, 15.0, 220.0)
    configs = {"cluster-node-timeout": "15000", "cluster-replica-validity-factor": "0"}
    assert facts_of(b"cluster_enabled:1\r\n", configs).replica_validity_s == math.inf


def test_a_largest_lag_of_zero_means_no_limit() -> None:
    configs = {"min-replicas-to-write": "1", "min-replicas-max-lag": "0"}
    facts = with_replicas(facts_of(b"", configs), NEAR)
    assert "for as long as clients reach it" in losses_of(facts, setup(ALONE))[SPLIT][1]
    assert "writes go on" in losses_of(facts, setup(ALONE))[REPLICA][1]
    assert facts_of(b"", {"min-replicas-to-write": "1"}).min_replicas_to_write == 1


def test_facts_without_configs_are_unknown() -> None:
    facts = facts_of(b"aof_enabled:1\r\n", {})
    assert facts.append_only
    assert facts.appendfsync is facts.save is facts.min_replicas_to_write is None
    assert facts.replication == parse_replication(b"")


def test_replicas_that_the_cluster_names() -> None:
    nodes = (
        b"a1 10.0.0.1:1@2 myself,master - 0 0 1 connected 0-8191\n"
        b"b1 10.0.0.2:1@2,host master - 0 0 2 connected 8192-16383\n"
        b"a2 10.0.0.3:1@2 slave a1 0 0 1 connected\n"
        b"a3 10.0.0.4:1@2 slave,fail a1 0 0 1 disconnected\n"
        b"b2 10.0.0.5:1@2 slave b1 0 0 2 connected\n"
    )
    assert count_replicas(nodes) == 2
    assert count_replicas(b"") == 0

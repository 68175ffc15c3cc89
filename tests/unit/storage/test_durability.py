"""What failures can lose: one sentence for each kind, from facts of servers and levels of topics."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from korvet.storage.durability import (
    Failure,
    Loss,
    Outlook,
    Setup,
    describe_replicas,
    doubtful_writes,
    merged,
    outlooks,
    refused_writes,
    refusing_topics,
)
from korvet.storage.link.barrier import Level
from korvet.storage.link.replication import Replica, parse_replication
from korvet.storage.link.server_facts import ServerFacts, facts_of

NOTHING, SOME, EVERYTHING, UNKNOWN = Loss.NOTHING, Loss.SOME, Loss.EVERYTHING, Loss.UNKNOWN
ALONE, TWO, FLUSHED = Level(0, False), Level(1, False), Level(0, True)

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


def setup(*levels: Level, **more: bool) -> Setup:
    return Setup({level: levels.count(level) for level in levels}, **more)


def outlook(failure: Failure, facts: ServerFacts, of: Setup) -> Outlook:
    (found,) = [found for found in outlooks(facts, of) if found.failure is failure]
    return found


def test_a_server_that_flushes_each_write_loses_only_what_nothing_else_holds() -> None:
    found = {each.failure: each.loss for each in outlooks(SAFE, setup(ALONE))}
    assert found == {
        Failure.BROKER: NOTHING,
        Failure.REDIS: NOTHING,
        Failure.POWER: NOTHING,
        Failure.DISK_FULL: NOTHING,
        Failure.MEMORY_FULL: NOTHING,
        Failure.PRIMARY: EVERYTHING,
        Failure.DELETED: EVERYTHING,
    }


def test_every_kind_of_failure_has_one_sentence_if_there_are_replicas() -> None:
    for facts in (PAIR, CLUSTER):
        assert [each.failure for each in outlooks(facts, setup(TWO))] == list(Failure)


def test_nothing_is_to_change_if_nothing_can_be_lost() -> None:
    for facts in (SAFE, PAIR, CLUSTER, but(SAFE, append_only=False, save="")):
        for each in outlooks(facts, setup(ALONE, TWO)):
            assert not (each.advice and each.loss is NOTHING), each


@pytest.mark.parametrize(
    ("changes", "restart", "power", "disk"),
    [
        ({"appendfsync": "everysec"}, SOME, SOME, SOME),
        ({"appendfsync": "no"}, NOTHING, SOME, SOME),
        ({"no_appendfsync_on_rewrite": True}, NOTHING, SOME, NOTHING),
        ({"append_only": False, "save": "3600 1"}, SOME, SOME, SOME),
        ({"append_only": False}, EVERYTHING, EVERYTHING, NOTHING),
        ({"append_only_fails": True}, SOME, SOME, NOTHING),
        ({"appendfsync": None}, UNKNOWN, UNKNOWN, UNKNOWN),
        ({"append_only": False, "save": None}, UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_persistence(changes: dict[str, Any], restart: Loss, power: Loss, disk: Loss) -> None:
    facts, of = but(SAFE, **changes), setup(ALONE)
    found = [outlook(each, facts, of).loss for each in (Failure.REDIS, Failure.POWER, Failure.DISK_FULL)]
    assert found == [restart, power, disk]


@pytest.mark.parametrize(
    ("appendfsync", "advice"),
    [
        ("always", "set no-appendfsync-on-rewrite no, or acks.all.fsync"),
        ("everysec", "set appendfsync always and no-appendfsync-on-rewrite no, or acks.all.fsync"),
    ],
)
def test_rewrites_and_snapshots_may_prevent_flushes(appendfsync: str, advice: str) -> None:
    facts = but(SAFE, appendfsync=appendfsync, no_appendfsync_on_rewrite=True, awaits_everysec=True)
    found = outlook(Failure.POWER, facts, setup(ALONE))
    assert "during a rewrite of the append-only file or a snapshot" in found.text
    assert found.advice == advice
    assert outlook(Failure.POWER, facts, setup(FLUSHED)).loss is NOTHING
    if appendfsync == "everysec":
        found = outlook(Failure.POWER, but(facts, awaits_everysec=False), setup(FLUSHED))
        assert found.loss is SOME
        assert found.advice == "set appendfsync always and no-appendfsync-on-rewrite no"


@pytest.mark.parametrize("changes", [{}, {"appendfsync": "everysec"}, {"appendfsync": None}])
def test_a_server_whose_first_append_only_file_is_incomplete(changes: dict[str, Any]) -> None:
    facts, of = but(SAFE, append_only_begins=True, **changes), setup(FLUSHED)
    for failure in (Failure.REDIS, Failure.POWER, Failure.DISK_FULL):
        found = outlook(failure, facts, of)
        assert found.loss is EVERYTHING
        assert "the first append-only file is not complete" in found.text
        assert found.advice == "wait until its rewrite has ended"
        assert not found.is_fault
    found = outlook(Failure.REDIS, but(facts, rewrite_fails=True), of)
    assert (found.loss, found.is_fault) == (EVERYTHING, True)
    assert outlook(Failure.REDIS, but(SAFE, rewrite_fails=True), of).loss is NOTHING


SWITCHED = "unless appendonly was set to yes just now"


@pytest.mark.parametrize("appendfsync", ["always", "everysec", "no"])
def test_a_restart_during_a_rewrite_may_load_a_file_from_before_appendonly_no(appendfsync: str) -> None:
    facts, of = but(SAFE, appendfsync=appendfsync, rewrites=True, maxmemory=0), setup(ALONE)
    for failure in (Failure.REDIS, Failure.POWER, Failure.MEMORY_FULL):
        before, found = outlook(failure, but(facts, rewrites=False), of), outlook(failure, facts, of)
        assert found.text.startswith(f"{before.text}, {SWITCHED}")
        assert (found.loss, found.advice, found.is_fault) == (before.loss, before.advice, False)
        assert found.condition == SWITCHED
        assert SWITCHED not in outlook(failure, facts, setup(ALONE, embedded=True)).text
    assert outlook(Failure.REDIS, facts, of).text.endswith(": then everything since it was set to no")
    full = outlook(Failure.DISK_FULL, facts, of)
    assert (full.condition == SWITCHED) is (full.loss is NOTHING)
    assert SWITCHED not in outlook(Failure.MEMORY_FULL, but(facts, maxmemory=1000), of).text
    found = outlook(Failure.REDIS, but(facts, rewrite_fails=True), of)
    assert (found.loss, found.is_fault) == (SOME, True)
    assert found.advice.endswith("the last rewrite of the append-only file failed, see the server's log")


def test_the_append_only_file_of_an_embedded_server_is_complete_from_the_start() -> None:
    facts = but(SAFE, append_only_begins=True)
    assert outlook(Failure.REDIS, facts, setup(ALONE, embedded=True)).loss is NOTHING


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


def test_a_server_without_files_is_unfit() -> None:
    facts = but(PAIR, append_only=False)
    found = outlook(Failure.REDIS, facts, setup(TWO))
    assert found.is_fault
    assert "the replicas then copy the empty server" in found.text, "their copies don't help"
    assert not outlook(Failure.REDIS, but(facts, save="60 1"), setup(TWO)).is_fault


def test_a_server_that_reports_flushes_too_early_keeps_records_unless_its_machine_fails() -> None:
    facts = but(SAFE, appendfsync="everysec", awaits_everysec=False)
    found = outlook(Failure.POWER, facts, setup(FLUSHED))
    assert (found.loss, found.advice) == (SOME, "set appendfsync always")
    assert found.text.startswith("up to 2 s of writes are lost (appendfsync everysec), in spite of acks.all")
    assert "acks.all.fsync" not in outlook(Failure.POWER, facts, setup(ALONE)).text
    assert outlook(Failure.POWER, but(facts, appendfsync="always"), setup(FLUSHED)).loss is NOTHING
    for failure in (Failure.REDIS, Failure.DISK_FULL):
        assert outlook(failure, facts, setup(FLUSHED)).loss is NOTHING, "the file is written"
    assert not refusing_topics(facts, {FLUSHED: 1})


@pytest.mark.parametrize("failure", [Failure.REDIS, Failure.POWER, Failure.DISK_FULL])
def test_topics_that_ask_for_a_flush_keep_records_in_spite_of_everysec(failure: Failure) -> None:
    facts = but(SAFE, appendfsync="everysec", awaits_everysec=True)
    assert outlook(failure, facts, setup(FLUSHED)).loss is NOTHING
    found = outlook(failure, facts, setup(FLUSHED, ALONE, FLUSHED))
    assert found.loss is SOME
    assert "acks=all to 2 of 3 topics" in found.text


@pytest.mark.parametrize(
    ("maxmemory", "policy", "evicted", "loss", "fault"),
    [
        (1000, "noeviction", 0, NOTHING, False),
        (1000, "volatile-lru", 7, NOTHING, False),
        (1000, "allkeys-lru", 0, EVERYTHING, True),
        (1000, "allkeys-lru", 7, EVERYTHING, True),
        (0, "allkeys-lru", 0, EVERYTHING, True),
        (0, "noeviction", 0, NOTHING, False),
        (0, "noeviction", 7, EVERYTHING, True),
    ],
)
def test_memory(maxmemory: int, policy: str, evicted: int, loss: Loss, fault: bool) -> None:
    facts = but(SAFE, maxmemory=maxmemory, maxmemory_policy=policy, evicted_keys=evicted)
    found = outlook(Failure.MEMORY_FULL, facts, setup(ALONE))
    assert (found.loss, found.is_fault) == (loss, fault)


def test_a_server_without_maxmemory_may_be_killed() -> None:
    facts = but(SAFE, maxmemory=0, append_only=False)
    assert outlook(Failure.MEMORY_FULL, facts, setup(ALONE)).loss is EVERYTHING


def test_what_is_unknown_after_a_restart_is_unknown_after_a_kill() -> None:
    found = outlook(Failure.MEMORY_FULL, but(SAFE, maxmemory=0, appendfsync=None), setup(ALONE))
    assert found.loss is UNKNOWN
    assert "what is lost then is unknown" in found.text


def test_an_embedded_server_exits_with_its_broker() -> None:
    facts = but(SAFE, appendfsync="everysec")
    assert outlook(Failure.BROKER, facts, setup(ALONE)).loss is NOTHING
    assert outlook(Failure.BROKER, facts, setup(ALONE, embedded=True)).loss is SOME
    assert outlook(Failure.BROKER, SAFE, setup(ALONE, embedded=True)).loss is NOTHING
    advice = outlook(Failure.BROKER, facts, setup(ALONE, embedded=True)).advice
    assert advice == "set embedded.appendfsync always, or acks.all.fsync"


def test_a_full_disk_loses_nothing_if_writes_are_refused_before() -> None:
    facts = but(SAFE, appendfsync="everysec")
    reserve = outlook(Failure.DISK_FULL, facts, setup(ALONE, embedded=True, reserve=True))
    assert (reserve.loss, reserve.text) == (
        NOTHING,
        "nothing is lost: writes are refused before (disk.reserve.bytes)",
    )
    found = outlook(Failure.DISK_FULL, facts, setup(ALONE, embedded=True))
    assert found.loss is SOME
    assert found.advice == "set embedded.appendfsync always, or acks.all.fsync"
    exits = outlook(Failure.DISK_FULL, SAFE, setup(ALONE, embedded=True))
    assert "the server exits" in exits.text


@pytest.mark.parametrize("facts", [PAIR, CLUSTER])
@pytest.mark.parametrize("failure", [Failure.PRIMARY, Failure.SPLIT])
def test_a_lost_primary(facts: ServerFacts, failure: Failure) -> None:
    found = outlook(failure, facts, setup(ALONE))
    assert found.loss is SOME
    assert "min.insync.replicas 2" in found.advice
    assert outlook(failure, facts, setup(TWO)).loss is NOTHING
    assert outlook(failure, facts, setup(TWO, ALONE)).loss is SOME
    both = with_replicas(facts, NEAR, NEAR)
    assert outlook(failure, both, setup(TWO)).loss is SOME, "the other replica may take over"
    assert outlook(failure, both, setup(Level(2, False))).loss is NOTHING


def test_an_embedded_server_has_backups_instead_of_replicas() -> None:
    assert outlook(Failure.PRIMARY, SAFE, setup(ALONE)).advice == "attach a replica that can be promoted"
    found = outlook(Failure.PRIMARY, SAFE, setup(ALONE, embedded=True))
    assert found.advice.startswith("keep backups on another machine, or use a server of your own")


def test_only_sentinel_does_not_wait_in_a_planned_failover() -> None:
    assert outlook(Failure.PLANNED, PAIR, setup(ALONE)).loss is NOTHING
    assert outlook(Failure.PLANNED, CLUSTER, setup(ALONE)).loss is NOTHING
    assert outlook(Failure.PLANNED, PAIR, setup(ALONE, sentinel=True)).loss is SOME
    assert outlook(Failure.PLANNED, PAIR, setup(TWO, sentinel=True)).loss is NOTHING


def test_how_long_a_cut_off_primary_goes_on() -> None:
    of = setup(ALONE)
    assert "for as long as clients reach it" in outlook(Failure.SPLIT, PAIR, of).text
    advice = outlook(Failure.SPLIT, PAIR, of).advice
    stops = "all writes then stop while a replica is missing, also after a failover"
    assert advice.endswith(f"and min-replicas-to-write 1 on all servers ({stops})")
    bounded = but(PAIR, min_replicas_to_write=1)
    assert "for up to 10 s (min-replicas-max-lag)" in outlook(Failure.SPLIT, bounded, of).text
    both = with_replicas(bounded, NEAR, NEAR)
    cut_off_with_a_replica = outlook(Failure.SPLIT, both, of)
    assert "for as long as clients reach it" in cut_off_with_a_replica.text
    assert "about 15 s (cluster-node-timeout)" in outlook(Failure.SPLIT, CLUSTER, of).text
    unknown = but(PAIR, min_replicas_to_write=None)
    assert "which is unknown" in outlook(Failure.SPLIT, unknown, of).text


def test_how_old_a_replica_may_be_in_a_cluster() -> None:
    assert "up to about 160 s of writes" in outlook(Failure.PRIMARY, CLUSTER, setup(ALONE)).text
    found = outlook(Failure.PRIMARY, but(CLUSTER, replica_validity_s=math.inf), setup(ALONE))
    assert "however old its data are" in found.text
    found = outlook(Failure.PRIMARY, but(CLUSTER, replica_validity_s=None), setup(ALONE))
    assert "cluster-replica-validity-factor" not in found.text, "unknown"


@pytest.mark.parametrize(
    ("facts", "levels", "text"),
    [
        (PAIR, [ALONE], "writes go on"),
        (PAIR, [ALONE, TWO], "1 of 2 topics refuse"),
        (with_replicas(PAIR, NEAR, NEAR), [TWO], "writes go on"),
        (with_replicas(PAIR, COPYING), [ALONE], "writes go on"),
        (with_replicas(PAIR, COPYING), [ALONE, TWO], "1 of 2 topics refuse"),
        (but(PAIR, min_replicas_to_write=1), [ALONE], "refuses all writes"),
    ],
)
def test_a_lost_replica(facts: ServerFacts, levels: list[Level], text: str) -> None:
    found = outlook(Failure.REPLICA, facts, setup(*levels))
    assert text in found.text
    assert found.loss is NOTHING


def test_replicas_now() -> None:
    assert describe_replicas(SAFE.replication, 0) == "none"
    assert describe_replicas(SAFE.replication, 1) == "0 of 1 in sync, 1 not attached"
    far = msgspec.structs.replace(NEAR, offset=400, lag_s=7)
    found = describe_replicas(with_replicas(PAIR, NEAR, COPYING, far).replication, 3)
    assert found == "2 of 3 in sync, at most 600 bytes behind, the last report 7 s ago"


def test_topics_that_refuse_records() -> None:
    levels = {ALONE: 3, TWO: 2, FLUSHED: 1}
    assert not refusing_topics(PAIR, levels)
    short = "2 of 6 topics refuse records: they need more replicas than 0 (min.insync.replicas)"
    assert refusing_topics(with_replicas(PAIR, COPYING), levels) == short
    flushed = "1 of 6 topics refuse records: they need an append-only file (acks.all.fsync)"
    assert refusing_topics(but(SAFE, append_only=False), levels) == f"{short}; {flushed}"


CANNOT_CONFIRM: list[tuple[dict[str, Any], str]] = [
    ({"append_only": False}, "an append-only file"),
    ({"appendfsync": "no"}, "appendfsync always"),
    ({"appendfsync": "no", "awaits_everysec": True}, "appendfsync always or everysec"),
    ({"has_waitaof": False}, "Redis 7.2, or Valkey"),
]


@pytest.mark.parametrize(("changes", "needed"), CANNOT_CONFIRM)
def test_topics_that_ask_for_a_flush_of_a_server_that_cannot_confirm_it(
    changes: dict[str, Any], needed: str
) -> None:
    facts = but(SAFE, **changes)
    assert refusing_topics(facts, {ALONE: 1, FLUSHED: 1}) == (
        f"1 of 2 topics refuse records: they need {needed} (acks.all.fsync)"
    )
    assert not refusing_topics(facts, {ALONE: 1})
    assert not refusing_topics(but(SAFE, appendfsync=None), {FLUSHED: 1}), "unknown"


@pytest.mark.parametrize(
    "changes", [{"appendfsync": "no"}, {"appendfsync": "everysec", "has_waitaof": False}]
)
@pytest.mark.parametrize("on_rewrite", [False, True])
def test_a_flush_is_no_advice_for_a_server_that_cannot_confirm_it(
    changes: dict[str, Any], on_rewrite: bool
) -> None:
    facts = but(SAFE, no_appendfsync_on_rewrite=on_rewrite, **changes)
    for failure in (Failure.POWER, Failure.DISK_FULL):
        found = outlook(failure, facts, setup(FLUSHED))
        assert found.loss is SOME
        assert found.advice.startswith("set appendfsync always")
        assert "acks.all.fsync" not in found.advice


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
    text = outlook(Failure.REPLICA, facts, setup(ALONE)).text
    assert lost in text
    assert text.endswith("and writes go on") is (not good)


def test_servers_with_the_same_outlook_are_named_once() -> None:
    of = setup(ALONE)
    found = merged(
        {
            "a:1": outlooks(SAFE, of),
            "b:1": outlooks(but(SAFE, appendfsync="everysec"), of),
            "c:1": outlooks(SAFE, of),
        }
    )
    names = [places for each, places in found if each.failure is Failure.REDIS]
    assert sorted(names) == [("a:1", "c:1"), ("b:1",)]
    assert [places for each, places in found if each.failure is Failure.DELETED] == [()]
    order = [list(Failure).index(each.failure) for each, _ in found]
    assert order == sorted(order)


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
    assert "for as long as clients reach it" in outlook(Failure.SPLIT, facts, setup(ALONE)).text
    assert "writes go on" in outlook(Failure.REPLICA, facts, setup(ALONE)).text
    assert facts_of(b"", {"min-replicas-to-write": "1"}).min_replicas_to_write == 1


def test_facts_without_configs_are_unknown() -> None:
    facts = facts_of(b"aof_enabled:1\r\n", {})
    assert facts.append_only
    assert facts.appendfsync is facts.save is facts.min_replicas_to_write is None
    assert facts.replication == parse_replication(b"")

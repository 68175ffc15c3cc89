"""What a failure can lose, one sentence for each kind, from the facts of a server and the levels of topics.

No I/O.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from korvet.storage.link.barrier import Level
    from korvet.storage.link.replication import Replication
    from korvet.storage.link.server_facts import ServerFacts

# With everysec, a flush may be in progress for this long before the server writes its file again.
_EVERYSEC_S: Final = 2
# Linux writes data to the disk after this time by default (vm.dirty_expire_centisecs).
_UNFLUSHED_S: Final = 30
# A replica that is this late has everything before SENTINEL FAILOVER promotes it: appends pause for longer.
_GRACE_S: Final = 0.1
_ALWAYS: Final = "always"
_EVERYSEC: Final = "everysec"
_NO: Final = "no"
_NOTHING: Final = "nothing is lost"
_UNFLUSHED: Final = "during a rewrite of the append-only file or a snapshot (no-appendfsync-on-rewrite yes)"
_SWITCHED: Final = "unless appendonly was set to yes just now"
_EARLY: Final = "in spite of acks.all.fsync: its version may report flushes too early (redis/redis#13793)"
_UNKNOWN: Final = "unknown: the Redis user may not run CONFIG GET"
_ALLOW_CONFIG: Final = "give the user the ACL rule +config|get"


class Failure(enum.Enum):
    """A kind of failure, in words that follow "if"."""

    BROKER = "a broker process dies"
    REDIS = "the Redis process dies and restarts"
    POWER = "the machine of Redis loses power"
    DISK_FULL = "the disk of Redis is full"
    MEMORY_FULL = "the memory of Redis is full"
    REPLICA = "a replica is lost"
    PLANNED = "a replica takes over as planned"
    PRIMARY = "the primary is lost for good"
    SPLIT = "the network splits and a replica takes over"
    DELETED = "somebody deletes the keys (FLUSHALL)"


class Loss(enum.Enum):
    """How much of the acknowledged writes a failure can lose."""

    NOTHING = enum.auto()
    SOME = enum.auto()
    EVERYTHING = enum.auto()
    UNKNOWN = enum.auto()


class Outlook(msgspec.Struct, frozen=True):
    """What one kind of failure can lose."""

    failure: Failure
    loss: Loss
    text: str
    advice: str = ""
    """What to change; empty if nothing can be lost, or nothing helps."""
    is_fault: bool = False
    """Whether the server is unfit to hold data until that is changed."""
    condition: str = ""
    """When the outlook holds, as the text says, for lists of failures without the text."""

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


class Setup(msgspec.Struct, frozen=True):
    """What a server does not report itself."""

    levels: Mapping[Level, int]
    """The number of topics of each level, with internal topics."""
    embedded: bool = False
    """Whether `korvet serve` runs the server."""
    reserve: bool = False
    """Whether `korvet serve` makes the server refuse writes before its disk is full (disk.reserve.bytes)."""
    sentinel: bool = False
    """Whether Sentinel promotes replicas."""
    named_replicas: int = 0
    """How many replicas the sentinels know, those that they do not reach too."""

    def candidates(self, server: ServerFacts) -> int:
        """How many replicas of a server may be promoted: those that are attached now, and as many as the
        sentinels or the cluster name.
        """
        return max(len(server.replication.standing), server.named_replicas, self.named_replicas)


def outlooks(server: ServerFacts, setup: Setup) -> tuple[Outlook, ...]:
    """What each kind of failure of one server can lose. Failures that need a replica are left out if there is
    none.
    """
    if setup.embedded:
        # An embedded server has its append-only file from its first start.
        server = msgspec.structs.replace(server, append_only_begins=False, rewrites=False)
    restart = _restart(server, setup)
    found = [
        _broker(restart, setup),
        restart,
        _power(server, setup, restart),
        _disk_full(server, setup, restart),
        _memory_full(server, restart),
    ]
    if server.append_only and server.rewrites and not server.append_only_begins:
        found = [_unless_switched(each, server) for each in found]
    if setup.candidates(server):
        found += [_replica(server, setup), _planned(server, setup), _primary(server, setup)]
        found.append(_split(server, setup))
    else:
        found.append(_only_primary(setup))
    text = "everything since the last backup is lost, on replicas too; brokers stop within a second"
    found.append(Outlook(Failure.DELETED, Loss.EVERYTHING, text, "make backups"))
    return tuple(found)


def merged(found: Mapping[str, Sequence[Outlook]]) -> list[tuple[Outlook, tuple[str, ...]]]:
    """The outlooks of several servers by kind of failure, each with the names of its servers. There are no
    names if the outlook is that of all servers.
    """
    servers: dict[Outlook, list[str]] = {}
    for name, ours in found.items():
        for outlook in ours:
            servers.setdefault(outlook, []).append(name)
    order = list(Failure)
    return [
        (outlook, () if len(names) == len(found) else tuple(names))
        for outlook, names in sorted(servers.items(), key=lambda item: order.index(item[0].failure))
    ]


def describe_replicas(replication: Replication, candidates: int) -> str:
    """How many replicas there are, how many of the candidates are not attached, and how far the last one in
    sync is behind.
    """
    replicas = replication.standing
    text = f"{replication.in_sync} of {candidates} in sync" if candidates else "none"
    if candidates > len(replicas):
        text += f", {candidates - len(replicas)} not attached"
    followers = [replica for replica in replicas if replica.is_in_sync]
    if followers:
        behind = max(max(replication.offset - replica.offset, 0) for replica in followers)
        lag_s = max(replica.lag_s for replica in followers)
        text += f", at most {behind} bytes behind, the last report {lag_s} s ago"
    return text


def refused_writes(server: ServerFacts, setup: Setup) -> str:
    """Why the server refuses all writes now; empty if it does not, or if that is unknown."""
    refuses = "the server refuses all writes"
    if server.snapshot_fails and server.save and server.stop_writes_on_bgsave_error:
        return f"{refuses}: its last snapshot failed, see its log (stop-writes-on-bgsave-error)"
    if server.min_replicas_to_write is None and server.good_replicas == 0:
        return f"{refuses}: it has none of the replicas that it needs (min-replicas-to-write)"
    needed, lag_s = server.min_replicas_to_write or 0, server.min_replicas_max_lag_s or 0
    count = sum(replica.is_online and replica.lag_s <= lag_s for replica in server.replication.replicas)
    if count >= needed:
        return ""
    if setup.reserve:
        # korvet sets min-replicas-to-write on its own server to stop writes.
        return f"{refuses}: its disk is full"
    return f"{refuses}: it has {count} of {needed} replicas (min-replicas-to-write)"


def doubtful_writes(server: ServerFacts) -> str:
    """Why the server may refuse all writes now, which the user may not know; empty if it does not."""
    if not (server.snapshot_fails and server.save is None):
        return ""
    return f"the last snapshot failed, and whether the server refuses writes is {_UNKNOWN}; {_ALLOW_CONFIG}"


def refusing_topics(server: ServerFacts, levels: Mapping[Level, int]) -> str:
    """Which topics refuse records with acks=all now, and why; empty if none does."""
    in_sync, topics = server.replication.in_sync, sum(levels.values())
    short = _count(levels, lambda level: level.replicas > in_sync)
    lacking = _lacking_for_fsync(server)
    flushed = _count(levels, lambda level: level.fsync) if lacking else 0
    reasons = (
        (short, f"they need more replicas than {in_sync} (min.insync.replicas)"),
        (flushed, f"they need {lacking} (acks.all.fsync)"),
    )
    return "; ".join(f"{count} of {topics} topics refuse records: {why}" for count, why in reasons if count)


def _broker(restart: Outlook, setup: Setup) -> Outlook:
    if not setup.embedded:
        return Outlook(Failure.BROKER, Loss.NOTHING, f"{_NOTHING}: Redis holds the data")
    if restart.loss is Loss.NOTHING:
        return Outlook(Failure.BROKER, Loss.NOTHING, f"{_NOTHING}: the embedded server keeps its files")
    text = f"the embedded server may exit with it, and then {restart.text}"
    return Outlook(Failure.BROKER, restart.loss, text, restart.advice)


def _restart(server: ServerFacts, setup: Setup) -> Outlook:
    failure = Failure.REDIS
    if server.append_only_begins:
        text = (
            "everything is lost if appendonly was set to yes just now, because the first append-only file is "
            "not complete"
        )
        advice = "wait until its rewrite has ended"
        if server.rewrite_fails:
            advice += "; the last one failed, see the server's log"
        return Outlook(failure, Loss.EVERYTHING, text, advice, is_fault=server.rewrite_fails)
    if server.append_only and server.append_only_fails:
        text = (
            "everything since the last write to the append-only file is lost, because the last write failed"
        )
        return Outlook(failure, Loss.SOME, text, "repair the server's disk", is_fault=True)
    if not server.append_only:
        return _without_file(server, failure)
    if server.appendfsync is None:
        return Outlook(failure, Loss.UNKNOWN, _UNKNOWN, _ALLOW_CONFIG)
    if server.appendfsync != _EVERYSEC:
        # With "no", the server writes the file before it replies, too: only the system has not flushed it.
        return Outlook(failure, Loss.NOTHING, f"{_NOTHING}: it writes its append-only file before it replies")
    lost = f"up to {_EVERYSEC_S} s of writes are lost if a flush was in progress (appendfsync everysec)"
    return _unless_kept(failure, lost, _flush_always(server, setup), setup, _flushed(server))


def _unless_switched(outlook: Outlook, server: ServerFacts) -> Outlook:
    """The outlook while the append-only file is rewritten. If appendonly was set to no and to yes again, a
    restart loads the former file until that has ended; the server does not report which rewrite it is.
    """
    restarts = {Failure.REDIS, Failure.POWER}
    if outlook.loss is Loss.NOTHING:
        restarts.add(Failure.DISK_FULL)
    if not server.maxmemory:
        restarts.add(Failure.MEMORY_FULL)
    if outlook.failure not in restarts or outlook.loss not in {Loss.NOTHING, Loss.SOME}:
        return outlook
    text = f"{outlook.text}, {_SWITCHED}"
    if outlook.failure is not Failure.REDIS:
        return msgspec.structs.replace(outlook, text=text, condition=_SWITCHED)
    text += ": then everything since it was set to no"
    if server.rewrite_fails:
        advice = f"{outlook.advice}; " if outlook.advice else ""
        advice += "the last rewrite of the append-only file failed, see the server's log"
        return Outlook(outlook.failure, Loss.SOME, text, advice, is_fault=True)
    return msgspec.structs.replace(outlook, text=text, condition=_SWITCHED)


def _without_file(server: ServerFacts, failure: Failure) -> Outlook:
    """The outlook of a server without an append-only file."""
    advice = "set appendonly yes"
    if server.save is None:
        return Outlook(failure, Loss.UNKNOWN, _UNKNOWN, _ALLOW_CONFIG)
    if server.save:
        text = f"everything since the last snapshot is lost, now {server.unsaved_changes} changes"
        return Outlook(failure, Loss.SOME, text, advice)
    text = "everything is lost, because the server keeps no files"
    if server.replication.standing:
        text += "; the replicas then copy the empty server, unless one was promoted before"
    return Outlook(failure, Loss.EVERYTHING, text, advice, is_fault=True)


def _power(server: ServerFacts, setup: Setup, restart: Outlook) -> Outlook:
    failure = Failure.POWER
    no_file = not server.append_only or server.append_only_begins or server.append_only_fails
    if no_file or server.appendfsync is None:
        return msgspec.structs.replace(restart, failure=failure, is_fault=False)
    # What is written to the file survives the other failures: only this one needs the flush.
    early = server.appendfsync == _EVERYSEC and not server.awaits_everysec
    or_fsync = "" if early else _or_fsync(server)
    advice = f"set {_appendfsync(setup)} always{or_fsync}"
    if server.no_appendfsync_on_rewrite:
        always = "" if server.appendfsync == _ALWAYS else "appendfsync always and "
        advice = f"set {always}no-appendfsync-on-rewrite no{or_fsync}"
    if server.appendfsync == _EVERYSEC:
        lost = f"up to {_EVERYSEC_S} s of writes are lost (appendfsync everysec)"
        if server.no_appendfsync_on_rewrite:
            lost += f", up to about {_UNFLUSHED_S} s {_UNFLUSHED}"
    elif server.appendfsync != _ALWAYS:
        lost = f"up to about {_UNFLUSHED_S} s of writes are lost (appendfsync {server.appendfsync})"
    elif server.no_appendfsync_on_rewrite:
        lost = f"up to about {_UNFLUSHED_S} s of writes {_UNFLUSHED} are lost"
    else:
        text = f"{_NOTHING}: each write is flushed before the reply, if the disk keeps what it has confirmed"
        return Outlook(failure, Loss.NOTHING, text)
    if early:
        if any(level.fsync for level in setup.levels):
            lost += f", {_EARLY}"
        return Outlook(failure, Loss.SOME, lost, advice)
    return _unless_kept(failure, lost, advice, setup, _flushed(server))


def _disk_full(server: ServerFacts, setup: Setup, restart: Outlook) -> Outlook:
    failure = Failure.DISK_FULL
    if setup.reserve:
        return Outlook(failure, Loss.NOTHING, f"{_NOTHING}: writes are refused before (disk.reserve.bytes)")
    if server.append_only_begins:
        return Outlook(failure, restart.loss, f"if the server exits, {restart.text}", restart.advice)
    if server.append_only and server.appendfsync == _ALWAYS:
        text = f"{_NOTHING}: the server exits, and can start again when the disk has room"
        return Outlook(failure, Loss.NOTHING, text)
    if server.append_only and server.appendfsync is not None:
        lost = "the last writes are lost if the server exits before the disk has room; then it refuses writes"
        return _unless_kept(failure, lost, _flush_always(server, setup), setup, _flushed(server))
    if server.append_only or server.save is None:
        return Outlook(failure, Loss.UNKNOWN, _UNKNOWN, _ALLOW_CONFIG)
    if not server.save:
        return Outlook(failure, Loss.NOTHING, f"{_NOTHING}: the server keeps no files")
    refuses = server.stop_writes_on_bgsave_error
    then = "refuses writes" if refuses else "does not refuse writes (stop-writes-on-bgsave-error no)"
    text = f"snapshots fail, and the server {then}; if it exits, everything since the last one is lost"
    return Outlook(failure, Loss.SOME, text, "set appendonly yes")


def _memory_full(server: ServerFacts, restart: Outlook) -> Outlook:
    failure, policy, advice = Failure.MEMORY_FULL, server.maxmemory_policy, "set maxmemory-policy noeviction"
    # Volatile policies evict only keys with an expiry; ours have none.
    if server.evicted_keys and not policy.startswith("volatile-"):
        text = f"{server.evicted_keys} keys evicted since the server started ({policy})"
        return Outlook(failure, Loss.EVERYTHING, f"{text}: records and commits may be lost", advice, True)
    if server.evicts_ours:
        when = "" if server.maxmemory else " as soon as maxmemory is set"
        text = f"the server deletes topics, groups and commits{when} (maxmemory-policy {policy})"
        # Brokers don't start on such a server.
        return Outlook(failure, Loss.EVERYTHING, text, advice, is_fault=True)
    if server.maxmemory:
        return Outlook(failure, Loss.NOTHING, f"{_NOTHING}: the server refuses writes ({policy})")
    if restart.loss is Loss.NOTHING:
        text = f"{_NOTHING}, but the system may kill the server, because it has no maxmemory"
        return Outlook(failure, Loss.NOTHING, text)
    killed = "the system may kill the server, because it has no maxmemory"
    if restart.loss is Loss.UNKNOWN:
        return Outlook(
            failure, Loss.UNKNOWN, f"{killed}; what is lost then is {restart.text}", "set maxmemory"
        )
    return Outlook(failure, restart.loss, f"{killed}, and then {restart.text}", "set maxmemory")


def _replica(server: ServerFacts, setup: Setup) -> Outlook:
    left = max(server.replication.in_sync - 1, 0)
    stopped, topics = _count(setup.levels, lambda level: level.replicas > left), sum(setup.levels.values())
    needed = server.min_replicas_to_write
    # The server counts good replicas only if it needs at least one.
    least = int(server.good_replicas is not None) if needed is None else needed
    if least > left:
        text = f"{_NOTHING}, but the server refuses all writes (min-replicas-to-write)"
    elif stopped:
        text = f"{_NOTHING}, but {stopped} of {topics} topics refuse records with acks=all"
    elif needed is None:
        text = f"{_NOTHING}; whether writes go on is {_UNKNOWN}"
    else:
        text = f"{_NOTHING}, and writes go on"
    return Outlook(Failure.REPLICA, Loss.NOTHING, text)


def _only_primary(setup: Setup) -> Outlook:
    text = "everything since the last backup is lost, because there is no replica"
    advice = "attach a replica that can be promoted"
    if setup.embedded:
        # It listens on no port that a replica could use.
        advice = "keep backups on another machine, or use a server of your own with a replica (--redis)"
    return Outlook(Failure.PRIMARY, Loss.EVERYTHING, text, advice)


def _primary(server: ServerFacts, setup: Setup) -> Outlook:
    lost = "what the replica that takes over has not received is lost"
    if not server.cluster and not setup.sentinel:
        lost += " (without Sentinel, promote the replica with the largest offset)"
    elif server.cluster and server.replica_validity_s == math.inf:
        lost += ", however old its data are (cluster-replica-validity-factor 0)"
    elif server.cluster and server.replica_validity_s is not None:
        limits = "cluster-replica-validity-factor, repl-timeout"
        lost += f", up to about {server.replica_validity_s:.0f} s of writes ({limits})"
    return _unless_copied(Failure.PRIMARY, lost, _more_copies(server, setup), server, setup)


def _planned(server: ServerFacts, setup: Setup) -> Outlook:
    if not setup.sentinel:
        command = "CLUSTER FAILOVER" if server.cluster else "FAILOVER"
        text = f"{_NOTHING}: {command} waits until the replica has everything"
        return Outlook(Failure.PLANNED, Loss.NOTHING, text)
    lost = f"what a replica that is more than {_GRACE_S} s late has not received is lost (SENTINEL FAILOVER)"
    advice = f"use SENTINEL FAILOVER NAME COORDINATED (Valkey 9), or {_more_copies(server, setup)}"
    return _unless_copied(Failure.PLANNED, lost, advice, server, setup)


def _split(server: ServerFacts, setup: Setup) -> Outlook:
    needed, count = server.min_replicas_to_write, setup.candidates(server)
    advice = _more_copies(server, setup)
    if server.cluster:
        known = server.node_timeout_s is not None
        lasts = f"for about {server.node_timeout_s:.0f} s" if known else "for the cluster's timeout"
        lasts += " (cluster-node-timeout)"
    elif needed is None:
        lasts = "until it stops (min-replicas-max-lag, which is unknown)"
    elif needed >= count:
        lasts = f"for up to {server.min_replicas_max_lag_s} s (min-replicas-max-lag)"
    else:
        lasts = "for as long as clients reach it"
        stops = "all writes then stop while a replica is missing, also after a failover"
        advice += f", and min-replicas-to-write {count} on all servers ({stops})"
    lost = f"what the old primary acknowledges {lasts} is lost"
    return _unless_copied(Failure.SPLIT, lost, advice, server, setup)


def _lacking_for_fsync(server: ServerFacts) -> str:
    """What the server lacks to confirm that records are on its disk; empty if it lacks nothing we know of."""
    if not server.append_only:
        return "an append-only file"
    if server.appendfsync == _NO:
        # The server never reports that its file is on disk: WAITAOF waits in vain.
        return "appendfsync always or everysec" if server.awaits_everysec else "appendfsync always"
    return "" if server.has_waitaof else "Redis 7.2, or Valkey"


def _or_fsync(server: ServerFacts) -> str:
    return "" if _lacking_for_fsync(server) else ", or acks.all.fsync"


def _flush_always(server: ServerFacts, setup: Setup) -> str:
    return f"set {_appendfsync(setup)} always{_or_fsync(server)}"


def _appendfsync(setup: Setup) -> str:
    return "embedded.appendfsync" if setup.embedded else "appendfsync"


def _more_copies(server: ServerFacts, setup: Setup) -> str:
    candidates = setup.candidates(server)
    text = f"set min.insync.replicas {candidates + 1} (acks=all then stops while a replica is lost)"
    if candidates > len(server.replication.standing):
        forget = "CLUSTER FORGET" if server.cluster else "SENTINEL RESET"
        text += f", after {forget} of replicas that are gone for good"
    return text


def _unless_copied(failure: Failure, lost: str, advice: str, server: ServerFacts, setup: Setup) -> Outlook:
    """The outlook of a failure after which a replica takes over; whichever it is, it must have what was
    acknowledged.
    """
    candidates, condition = setup.candidates(server), ""
    if not (server.named_replicas or setup.named_replicas):
        # Nobody names replicas that are not attached now.
        which = "the replica" if candidates == 1 else f"one of the {candidates} replicas"
        condition = f"if {which} attached now takes over"
    return _unless_kept(failure, lost, advice, setup, lambda level: level.replicas >= candidates, condition)


def _flushed(server: ServerFacts) -> Callable[[Level], bool]:
    """Returns whether records of a level are in the server's append-only file when they are acknowledged; on
    its disk, too, unless it reports flushes too early.
    """
    lacking = _lacking_for_fsync(server)
    return lambda level: level.fsync and not lacking


def _unless_kept(
    failure: Failure,
    lost: str,
    advice: str,
    setup: Setup,
    keeps: Callable[[Level], bool],
    condition: str = "",
) -> Outlook:
    """The outlook of a failure that loses something, except records with acks=all in topics whose level
    keeps them. `condition`: when it keeps them.
    """
    kept, topics = _count(setup.levels, keeps), sum(setup.levels.values())
    if not kept:
        return Outlook(failure, Loss.SOME, lost, advice)
    only = f" {condition}" if condition else ""
    if kept == topics:
        text = f"nothing that was acknowledged with acks=all is lost{only}; with acks=1, {lost}"
        return Outlook(failure, Loss.NOTHING, text, condition=condition)
    text = (
        f"nothing that was acknowledged with acks=all to {kept} of {topics} topics is lost{only}; else {lost}"
    )
    return Outlook(failure, Loss.SOME, text, advice)


def _count(levels: Mapping[Level, int], condition: Callable[[Level], bool]) -> int:
    return sum(count for level, count in levels.items() if condition(level))

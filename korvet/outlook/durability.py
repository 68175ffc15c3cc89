"""What a failure can lose: a table of failures and facts, with a sentence for each. `korvet doctor`, /status
and the log show the rows that hold, the documentation all. No I/O.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from korvet.redis.barrier import Level
    from korvet.redis.replication import Replication
    from korvet.redis.server_facts import ServerFacts

OK: Final = "ok"
WARNING: Final = "warning"
FAULT: Final = "fault"
_UNKNOWN: Final = "unknown: the Redis user may not run CONFIG GET"
_ALLOW_CONFIG: Final = "give the user the ACL rule +config|get"
_UNKNOWN_LOSS: Final = f"{_UNKNOWN}; {_ALLOW_CONFIG}"
_AS_RESTART: Final = "the same as if the Redis process dies and restarts"


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


class Outlook(NamedTuple):
    """A line about one or all servers. `state` is ok, warning or fault."""

    subject: str
    state: str
    text: str


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

    def count(self, condition: Callable[[Level], bool]) -> int:
        """The number of topics whose level meets a condition."""
        return sum(count for level, count in self.levels.items() if condition(level))


class Keeps(enum.Enum):
    """Which topics lose nothing that was acknowledged with acks=all, in words for the documentation."""

    FSYNC = "`acks.all.fsync`"
    """The record is in the append-only file."""
    COPIES = "`min.insync.replicas` that counts all replicas"
    """Whichever replica takes over has the record."""


class Facts(NamedTuple):
    """What the table depends on, and what its sentences name."""

    server: ServerFacts
    setup: Setup

    @property
    def has_file(self) -> bool:
        """Whether there is a whole append-only file, and the user may know when it is flushed."""
        server = self.server
        partial = server.append_only_begins or server.append_only_fails
        return server.append_only and server.appendfsync is not None and not partial

    @property
    def candidates(self) -> int:
        """How many replicas may be promoted."""
        return self.setup.candidates(self.server)

    @property
    def topics(self) -> int:
        """The number of topics."""
        return self.setup.count(lambda _: True)

    @property
    def left(self) -> int:
        """The replicas in sync after the loss of one."""
        return max(self.server.replication.in_sync - 1, 0)

    @property
    def stopped(self) -> int:
        """The topics that refuse records after that."""
        return self.setup.count(lambda level: level.replicas > self.left)

    @property
    def needed(self) -> int:
        """How many replicas the server needs for writes, at least."""
        needed = self.server.min_replicas_to_write
        # The server counts good replicas only if it needs at least one.
        return int(self.server.good_replicas is not None) if needed is None else needed

    @property
    def flushes_early(self) -> bool:
        """Whether the server may report a flush before it."""
        return self.server.appendfsync == "everysec" and not self.server.awaits_everysec

    def kept(self, keeps: Keeps) -> int:
        """The number of topics that lose nothing."""
        if keeps is Keeps.COPIES:
            return self.setup.count(lambda level: level.replicas >= self.candidates)
        return 0 if _lacking_for_fsync(self.server) else self.setup.count(lambda level: level.fsync)

    def advice(self, keeps: Keeps, failure: Failure) -> str:
        """What to change, so that all topics lose nothing."""
        if keeps is Keeps.COPIES:
            return (
                f"set min.insync.replicas {self.candidates + 1} (acks=all then stops while a replica is lost)"
            )
        settings = []
        if self.server.appendfsync != "always":
            settings.append("embedded.appendfsync always" if self.setup.embedded else "appendfsync always")
        if self.server.no_appendfsync_on_rewrite and failure is Failure.POWER:
            settings.append("no-appendfsync-on-rewrite no")
        helps = not _lacking_for_fsync(self.server) and not (self.flushes_early and failure is Failure.POWER)
        return f"set {' and '.join(settings)}{', or acks.all.fsync' if helps else ''}"


class Row(NamedTuple):
    """A row of the table."""

    holds: Callable[[Facts], bool]
    state: str | Keeps | None
    """That of a restart if it is None; with Keeps, a warning unless all topics are of that kind."""
    text: str


def _else(_: Facts) -> bool:
    return True


TABLE: Final[Mapping[Failure, tuple[Row, ...]]] = {
    Failure.BROKER: (
        Row(lambda f: not f.setup.embedded, OK, "nothing is lost: Redis holds the data"),
        Row(_else, None, f"the embedded server may exit with it: {_AS_RESTART}"),
    ),
    Failure.REDIS: (
        Row(
            lambda f: f.server.append_only_begins,
            WARNING,
            "everything is lost if appendonly was set to yes just now, because the first append-only file is "
            "not complete; wait until its rewrite has ended",
        ),
        Row(
            lambda f: f.server.append_only and f.server.append_only_fails,
            FAULT,
            "everything since the last write to the append-only file is lost, because the last write failed; "
            "repair the server's disk",
        ),
        Row(
            lambda f: f.has_file and f.server.appendfsync == "everysec",
            Keeps.FSYNC,
            "up to 2 s of writes are lost if a flush was in progress (appendfsync everysec)",
        ),
        # With "no", the server writes the file before it replies, too: only the system has not flushed it.
        Row(lambda f: f.has_file, OK, "nothing is lost: it writes its append-only file before it replies"),
        Row(lambda f: f.server.append_only or f.server.save is None, WARNING, _UNKNOWN_LOSS),
        Row(
            lambda f: f.server.save != "",
            WARNING,
            "everything since the last snapshot is lost, now {f.server.unsaved_changes} changes; "
            "set appendonly yes",
        ),
        Row(
            _else,
            FAULT,
            "everything is lost, because the server keeps no files; replicas then copy the empty server, "
            "unless one was promoted before; set appendonly yes",
        ),
    ),
    # A flush may be in progress for 2 s before the server writes its file again. Linux writes data to the
    # disk after 30 s by default (vm.dirty_expire_centisecs).
    Failure.POWER: (
        Row(lambda f: not f.has_file, None, _AS_RESTART),
        Row(
            lambda f: f.server.appendfsync == "everysec" and f.server.no_appendfsync_on_rewrite,
            Keeps.FSYNC,
            "up to 2 s of writes are lost (appendfsync everysec), up to about 30 s during a rewrite of the "
            "append-only file or a snapshot (no-appendfsync-on-rewrite yes)",
        ),
        Row(
            lambda f: f.server.appendfsync == "everysec",
            Keeps.FSYNC,
            "up to 2 s of writes are lost (appendfsync everysec)",
        ),
        Row(
            lambda f: f.server.appendfsync != "always",
            Keeps.FSYNC,
            "up to about 30 s of writes are lost (appendfsync {f.server.appendfsync})",
        ),
        Row(
            lambda f: f.server.no_appendfsync_on_rewrite,
            Keeps.FSYNC,
            "up to about 30 s of writes are lost during a rewrite of the append-only file or a snapshot "
            "(no-appendfsync-on-rewrite yes)",
        ),
        Row(
            _else,
            OK,
            "nothing is lost: each write is flushed before the reply, if the disk keeps what it has "
            "confirmed",
        ),
    ),
    Failure.DISK_FULL: (
        Row(lambda f: f.setup.reserve, OK, "nothing is lost: writes are refused before (disk.reserve.bytes)"),
        Row(lambda f: f.server.append_only_begins, None, f"if the server exits, {_AS_RESTART}"),
        Row(
            lambda f: f.server.append_only and f.server.appendfsync == "always",
            OK,
            "nothing is lost: the server exits, and can start again when the disk has room",
        ),
        Row(
            lambda f: f.server.append_only and f.server.appendfsync is not None,
            Keeps.FSYNC,
            "the server refuses writes, and the last ones before that are lost if it exits before the disk "
            "has room",
        ),
        Row(lambda f: f.server.append_only or f.server.save is None, WARNING, _UNKNOWN_LOSS),
        Row(lambda f: f.server.save == "", OK, "nothing is lost: the server keeps no files"),
        Row(
            lambda f: f.server.stop_writes_on_bgsave_error,
            WARNING,
            "snapshots fail, and the server refuses writes; if it exits, everything since the last one is "
            "lost; set appendonly yes",
        ),
        Row(
            _else,
            WARNING,
            "snapshots fail, and writes go on (stop-writes-on-bgsave-error no); if the server exits, "
            "everything since the last one is lost; set appendonly yes",
        ),
    ),
    Failure.MEMORY_FULL: (
        # Volatile policies evict only keys with an expiry; ours have none.
        Row(
            lambda f: f.server.evicted_keys > 0 and not f.server.maxmemory_policy.startswith("volatile-"),
            FAULT,
            "{f.server.evicted_keys} keys evicted since the server started ({f.server.maxmemory_policy}): "
            "records and commits may be lost; set maxmemory-policy noeviction",
        ),
        # Brokers don't start on such a server.
        Row(
            lambda f: f.server.evicts_ours,
            FAULT,
            "at maxmemory, the server deletes topics, groups and commits (maxmemory-policy "
            "{f.server.maxmemory_policy}); set maxmemory-policy noeviction",
        ),
        Row(
            lambda f: f.server.maxmemory > 0,
            OK,
            "nothing is lost: the server refuses writes ({f.server.maxmemory_policy})",
        ),
        Row(_else, None, f"the system may kill the server, as it has no maxmemory (set one): {_AS_RESTART}"),
    ),
    Failure.REPLICA: (
        Row(
            lambda f: f.needed > f.left,
            OK,
            "nothing is lost, but the server refuses all writes (min-replicas-to-write)",
        ),
        Row(
            lambda f: f.stopped > 0,
            OK,
            "nothing is lost, but {f.stopped} of {f.topics} topics refuse records with acks=all",
        ),
        Row(
            lambda f: f.server.min_replicas_to_write is None,
            OK,
            f"nothing is lost; whether writes go on is {_UNKNOWN}",
        ),
        Row(_else, OK, "nothing is lost, and writes go on"),
    ),
    Failure.PLANNED: (
        Row(
            lambda f: f.server.cluster,
            OK,
            "nothing is lost: CLUSTER FAILOVER waits until the replica has everything",
        ),
        Row(
            lambda f: not f.setup.sentinel,
            OK,
            "nothing is lost: FAILOVER waits until the replica has everything",
        ),
        # SENTINEL FAILOVER pauses appends for longer than a replica that is less late needs.
        Row(
            _else,
            Keeps.COPIES,
            "what a replica that is more than 0.1 s late has not received is lost (SENTINEL FAILOVER, "
            "unless it is COORDINATED, which Valkey 9 has)",
        ),
    ),
    Failure.PRIMARY: (
        # An embedded server listens on no port that a replica could use.
        Row(
            lambda f: not f.candidates and f.setup.embedded,
            WARNING,
            "everything since the last backup is lost, because there is no replica; keep backups on another "
            "machine, or use a server of your own with a replica (--redis)",
        ),
        Row(
            lambda f: not f.candidates,
            WARNING,
            "everything since the last backup is lost, because there is no replica; attach a replica that "
            "can be promoted",
        ),
        Row(
            lambda f: f.server.replica_validity_s == math.inf,
            Keeps.COPIES,
            "what the replica that takes over has not received is lost, however old its data are "
            "(cluster-replica-validity-factor 0)",
        ),
        Row(
            lambda f: f.server.replica_validity_s is not None,
            Keeps.COPIES,
            "what the replica that takes over has not received is lost, up to about "
            "{f.server.replica_validity_s:.0f} s of writes (cluster-replica-validity-factor, repl-timeout)",
        ),
        Row(
            lambda f: f.server.cluster or f.setup.sentinel,
            Keeps.COPIES,
            "what the replica that takes over has not received is lost",
        ),
        Row(
            _else,
            Keeps.COPIES,
            "what the replica that takes over has not received is lost (without Sentinel, promote the "
            "replica with the largest offset)",
        ),
    ),
    Failure.SPLIT: (
        Row(
            lambda f: f.server.node_timeout_s is not None,
            Keeps.COPIES,
            "what the old primary acknowledges for about {f.server.node_timeout_s:.0f} s "
            "(cluster-node-timeout) is lost",
        ),
        Row(
            lambda f: f.server.cluster,
            Keeps.COPIES,
            "what the old primary acknowledges for the cluster's timeout (cluster-node-timeout) is lost",
        ),
        Row(
            lambda f: f.server.min_replicas_to_write is None,
            Keeps.COPIES,
            "what the old primary acknowledges until it stops (min-replicas-max-lag, which is unknown) is "
            "lost",
        ),
        Row(
            lambda f: f.needed >= f.candidates,
            Keeps.COPIES,
            "what the old primary acknowledges for up to {f.server.min_replicas_max_lag_s} s "
            "(min-replicas-max-lag) is lost",
        ),
        Row(
            _else,
            Keeps.COPIES,
            "what the old primary acknowledges for as long as clients reach it is lost (until it stops, "
            "with min-replicas-to-write {f.candidates} on all servers; then all writes also stop while a "
            "replica is missing, also after a failover)",
        ),
    ),
    Failure.DELETED: (
        Row(
            _else,
            WARNING,
            "everything since the last backup is lost, on replicas too; brokers stop within a second; make "
            "backups",
        ),
    ),
}
"""Of each failure, the first row that holds counts."""
_OF_REPLICAS: Final = {Failure.REPLICA, Failure.PLANNED, Failure.SPLIT}


def outlooks(found: Mapping[str, ServerFacts], setup: Setup, servers: int) -> Iterator[Outlook]:
    """The replicas of servers, what they refuse now, and what each kind of failure can lose. Servers with the
    same loss share a line. `servers`: how many there are, with those that did not report their facts.
    """
    losses: dict[tuple[Failure, str, str], list[str]] = {}
    for place, server in found.items():
        where = f", {place}" if servers > 1 else ""
        candidates = setup.candidates(server)
        state = WARNING if server.replication.in_sync < candidates else OK
        yield Outlook(f"replicas{where}", state, describe_replicas(server.replication, candidates))
        if refused := refused_writes(server, setup):
            yield Outlook(f"writes{where}", FAULT, refused)
        elif doubtful := doubtful_writes(server):
            yield Outlook(f"writes{where}", WARNING, doubtful)
        if refusing := refusing_topics(server, setup):
            yield Outlook(f"acks=all{where}", FAULT, refusing)
        for failure, loss in losses_of(server, setup).items():
            losses.setdefault((failure, *loss), []).append(place)
    order = list(Failure)
    for (failure, state, text), places in sorted(losses.items(), key=lambda item: order.index(item[0][0])):
        named = () if len(places) == len(found) else places
        yield Outlook(", ".join((f"if {failure.value}", *named)), state, text)


def losses_of(server: ServerFacts, setup: Setup) -> dict[Failure, tuple[str, str]]:
    """What each kind of failure of one server can lose: state and text. Failures that need a replica are left
    out if there is none.
    """
    if setup.embedded:
        # An embedded server has its append-only file from its first start.
        server = msgspec.structs.replace(server, append_only_begins=False, rewrites=False)
    facts = Facts(server, setup)
    restart, _ = _loss(Failure.REDIS, facts, OK)
    # A fault is reported once.
    inherited = OK if restart == OK else WARNING
    found = {
        failure: _loss(failure, facts, inherited)
        for failure in Failure
        if facts.candidates or failure not in _OF_REPLICAS
    }
    return found | _during_rewrite(found, server)


def _loss(failure: Failure, facts: Facts, restart: str) -> tuple[str, str]:
    """`restart`: the state of a row that is like a restart."""
    row = next(row for row in TABLE[failure] if row.holds(facts))
    keeps, text = row.state, row.text.format(f=facts)
    if not isinstance(keeps, Keeps):
        return keeps or restart, text
    kept, topics, advice = facts.kept(keeps), facts.topics, facts.advice(keeps, failure)
    if kept and failure is Failure.POWER and facts.flushes_early:
        early = "in spite of acks.all.fsync: its version may report flushes too early (redis/redis#13793)"
        return WARNING, f"{text}, {early}; {advice}"
    if not kept:
        return WARNING, f"{text}; {advice}"
    # Sentinels and clusters name replicas that are not attached now, too.
    named = facts.server.named_replicas or facts.setup.named_replicas
    only = "" if named or keeps is Keeps.FSYNC else " if a replica that is attached now takes over"
    if kept == topics:
        return OK, f"nothing that was acknowledged with acks=all is lost{only}; with acks=1, {text}"
    to = f"to {kept} of {topics} topics"
    return WARNING, f"nothing that was acknowledged with acks=all {to} is lost{only}; else {text}; {advice}"


def _during_rewrite(
    found: Mapping[Failure, tuple[str, str]], server: ServerFacts
) -> dict[Failure, tuple[str, str]]:
    """The losses that differ while the append-only file is rewritten: if appendonly was set to no and to yes
    again, a restart loads the former file until then. The server does not report which rewrite it is.
    """
    if not (server.append_only and server.rewrites):
        return {}
    former = "if appendonly was set to yes just now, everything since it was set to no is lost"
    changed = {}
    for failure in (Failure.REDIS, Failure.POWER, Failure.DISK_FULL):
        state, text = found[failure]
        if text == _UNKNOWN_LOSS:
            continue
        if not server.append_only_begins:
            text = f"{text}; {former}"
        if failure is Failure.REDIS and server.rewrite_fails:
            state, text = FAULT, f"{text}; the last rewrite of that file failed, see the server's log"
        changed[failure] = state, text
    return changed


def describe_replicas(replication: Replication, candidates: int) -> str:
    """How many replicas there are, how many of the candidates are not attached, and how far the last one in
    sync is behind.
    """
    replicas = replication.standing
    text = f"{replication.in_sync} of {candidates} in sync" if candidates else "none"
    if candidates > len(replicas):
        forget = "SENTINEL RESET or CLUSTER FORGET forgets those that are gone for good"
        text += f", {candidates - len(replicas)} not attached ({forget})"
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


def refusing_topics(server: ServerFacts, setup: Setup) -> str:
    """Which topics refuse records with acks=all now, and why; empty if none does."""
    in_sync, topics = server.replication.in_sync, setup.count(lambda _: True)
    short = setup.count(lambda level: level.replicas > in_sync)
    lacking = _lacking_for_fsync(server)
    flushed = setup.count(lambda level: level.fsync) if lacking else 0
    reasons = (
        (short, f"they need more replicas than {in_sync} (min.insync.replicas)"),
        (flushed, f"they need {lacking} (acks.all.fsync)"),
    )
    return "; ".join(f"{count} of {topics} topics refuse records: {why}" for count, why in reasons if count)


def _lacking_for_fsync(server: ServerFacts) -> str:
    """What the server lacks to confirm that records are on its disk; empty if it lacks nothing we know of."""
    if not server.append_only:
        return "an append-only file"
    if server.appendfsync == "no":
        # The server never reports that its file is on disk: WAITAOF waits in vain.
        return "appendfsync always or everysec" if server.awaits_everysec else "appendfsync always"
    return "" if server.has_waitaof else "Redis 7.2, or Valkey"

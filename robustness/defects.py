"""Brokers with a planted defect: `python -m robustness.defects DEFECT serve OPTION...`.

A defect replaces functions of korvet in the broker's process before that serves. Each one names stages of the
small run or a plan, which show it, and the kinds of violations of which one must be found.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from kio.schema.errors import ErrorCode
from msgspec.structs import replace

from korvet.api import produce
from korvet.api.producing.response import Refused
from korvet.cli import main
from korvet.coordinator.markers import MarkerWriter
from korvet.coordinator.projector import Projector
from korvet.coordinator.served import ServedPartition, call
from korvet.groups.commits import Commits
from korvet.groups.consumer import membership as consumer_membership
from korvet.groups.membership import Membership
from korvet.groups.messages import CommitReply, JoinReply
from korvet.groups.offset_table import OffsetTable
from korvet.log import append_calls, committed
from korvet.log.append_queue import AppendQueue
from korvet.log.appends import RecordsAppend
from korvet.log.broker_logs import Logs
from korvet.log.ends import KnownEnds
from korvet.log.partition_log import PartitionLog
from korvet.log.release import Release
from korvet.log.state import LogState
from korvet.redis import functions
from korvet.redis.keys import OFFSETS_TOPIC
from korvet.redis_groups import share
from korvet.transactions.shard import TransactionShard
from robustness.plan import FaultPlan, GroupPlan, Plan, ProducerPlan, TopicPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.values import Ends


class Defect(NamedTuple):
    """A defect, and how it is found."""

    plant: Callable[[], None]
    kinds: frozenset[str]
    stages: tuple[str, ...] = ()
    plan: Plan | None = None
    """The plan of a run that shows it; None for the small run."""
    is_simulated: bool = False
    """Whether only the simulation shows it, in hundreds of seeds."""


DEFECTS: Final[dict[str, Defect]] = {}
# The place of the first batch's offset in a reply of korvet_append.
FIRST_VERDICT: Final = 6
# A primary is lost with what its replica did not have yet. One topic keeps what is acknowledged; the others
# may lose it.
LOSSY_FAILOVER: Final = Plan(
    seed=0,
    duration_ms=6_500,
    topology="pair",
    brokers=1,
    replica_lag_ms=500,
    topics=(
        TopicPlan("kept", 1, "clock", min_insync_replicas=2),
        TopicPlan("clock", 1, "clock", min_insync_replicas=1),
        TopicPlan("dense", 1, "dense", min_insync_replicas=1),
    ),
    producers=(
        ProducerPlan("all", "confluent", "plain", ("kept",), -1, rate_per_s=50, linger_ms=50),
        ProducerPlan("one", "confluent", "plain", ("kept", "clock", "dense"), 1, rate_per_s=150, linger_ms=0),
    ),
    groups=(
        GroupPlan(
            name="group",
            client="confluent",
            protocol="classic",
            members=1,
            topics=("kept", "clock", "dense"),
            isolation="read_uncommitted",
            commit_interval_ms=200,
            restart_interval_ms=0,
        ),
    ),
    natives=(),
    admins=(),
    faults=(FaultPlan(at_ms=3_000, kind="failover_lossy", target="primary", duration_ms=300),),
)


def shown_by(
    *stages: str, kinds: set[str], plan: Plan | None = None, is_simulated: bool = False
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Registers a defect under its function's name."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        DEFECTS[plant.__name__] = Defect(plant, frozenset(kinds), stages, plan, is_simulated)
        return plant

    return register


def _replace(owner: object, name: str, new: object) -> Any:
    """Replaces an attribute, and returns what it was. Raises AttributeError if there is none."""
    old = getattr(owner, name)
    setattr(owner, name, new)
    return old


def _change_lua(name: str, old: str, new: str) -> None:
    """Replaces a part of a Lua file, which occurs once in it."""

    def changed(package: str, asked: str) -> str:
        text: str = read(package, asked)
        if asked != name:
            return text
        assert text.count(old) == 1, f"{name}.lua has changed"
        return text.replace(old, new)

    read = _replace(functions, "_file", changed)


@shown_by("race", kinds={"nonmonotonic send"})
def send_the_newest_append_first() -> None:
    """Batches that wait are overtaken by those that arrive after them, if no sequence numbers tell Redis."""

    def add(self: AppendQueue, append: Any) -> None:
        if append.producer is None and isinstance(append, RecordsAppend) and append.received is not None:
            self.put_first([append])
        else:
            added(self, append)

    added = _replace(AppendQueue, "add", add)


@shown_by(kinds={"unreadable"})
def drop_a_marker() -> None:
    """The first partition of a transaction gets no marker."""

    async def write(
        self: MarkerWriter, partition: tuple[str, int], marker: object, is_over: Callable[[], bool]
    ) -> bool:
        if partition[0] != OFFSETS_TOPIC and partition[1] == 0:
            return True
        done: bool = await written(self, partition, marker, is_over)
        return done

    written = _replace(MarkerWriter, "_write", write)


@shown_by("rewind", "kill", kinds={"lost commit", "commit went back"})
def answer_a_commit_before_its_append() -> None:
    """OffsetCommit is answered while its records are on their way."""

    def apply(self: ServedPartition[Any, Any], step: Any, now_ms: int, **limits: bool) -> None:
        applied(self, step, now_ms, **limits)
        for token, reply in step.outcome.replies:
            waiting = self._waiting.pop(token, None) if isinstance(reply, CommitReply) else None
            if waiting is not None:
                call(waiting[1], reply)

    applied = _replace(ServedPartition, "_apply", apply)


@shown_by(kinds={"aborted read"})
def forget_an_aborted_transaction() -> None:
    """The first aborted transaction among the records of a fetch is not in the response."""

    def overlapping(aborted: Any, end: int) -> Any:
        return found(aborted, end)[1:]

    found = _replace(committed, "overlapping", overlapping)


@shown_by(kinds={"aborted read", "precommitted read"})
def read_past_the_last_stable_offset() -> None:
    """Readers of committed records get all records."""

    def ends(self: LogState) -> Ends:
        known = self.known.ends
        return replace(known, last_stable_offset=known.high_watermark)

    _replace(LogState, "ends", property(ends))
    _replace(KnownEnds, "is_stable_current", property(lambda _: True))


@shown_by(kinds={"missing copy"}, is_simulated=True)
def keep_the_offsets_of_an_aborted_transaction() -> None:
    """A member's offsets take effect, although the copies that it made are not committed."""

    def end_transaction(self: OffsetTable, producer_id: int, *, committed: bool) -> Any:
        return ended(self, producer_id, committed=True)

    ended = _replace(OffsetTable, "end_transaction", end_transaction)


@shown_by(kinds={"stuck client"}, is_simulated=True)
def refuse_all_batches() -> None:
    """Producers are told for ever that replicas are missing."""

    def refuse(*_: object) -> NoReturn:
        raise Refused(ErrorCode.not_enough_replicas, "planted")

    _replace(produce, "read_header", refuse)


@shown_by(kinds={"commit went back"}, is_simulated=True)
def answer_with_the_first_commit() -> None:
    """OffsetFetch returns the first commit of each group and partition, as long as the group has members."""
    first: dict[Any, Any] = {}

    def fetch(self: Commits, request: Any, topic: str, partition: int) -> Any:
        found = fetched(self, request, topic, partition)
        group = self._context.groups.get(request.group_id)
        if found.offset < 0 or group is None or not group.members:
            return found
        return first.setdefault((id(self), request.group_id, topic, partition), found)

    fetched = _replace(Commits, "_fetch_one", fetch)


@shown_by(kinds={"two owners"}, is_simulated=True)
def give_partitions_away_early() -> None:
    """A member of the consumer protocol gets partitions that their former owner has not given up."""

    def reconcile(*args: Any) -> Any:
        return reconciled(*args[:-1], lambda *_: True)

    reconciled = _replace(consumer_membership, "reconcile", reconcile)


@shown_by(kinds={"undeleted"}, is_simulated=True)
def delete_no_records() -> None:
    """DeleteRecords is answered, and deletes nothing."""

    async def delete_before(self: PartitionLog, offset: int | None, timeout_ms: int) -> int:
        return self.ends.log_start if offset is None else offset

    _replace(PartitionLog, "delete_before", delete_before)


@shown_by("fence", kinds={"aborted read", "lost transaction"})
def skip_a_fence_check() -> None:
    """A producer that was replaced ends the transaction of its successor."""
    _replace(TransactionShard, "_is_valid_epoch", lambda *_, **__: True)


@shown_by(kinds={"stalled group"})
def drop_a_pending_member() -> None:
    """A member that was given its ID is unknown when it joins with it."""

    def join(self: Membership, group: Any, request: Any, token: int) -> None:
        if request.member_id in group.pending_joins:
            self._context.reply(token, JoinReply(ErrorCode.unknown_member_id, request.member_id))
        else:
            joined(self, group, request, token)

    joined = _replace(Membership, "_join_known", join)


@shown_by(kinds={"failed assertion"}, is_simulated=True)
def name_another_offset() -> None:
    """The replies to appends name the offset before the first record."""

    def integers(reply: memoryview) -> tuple[int, ...] | None:
        numbers = read(reply)
        return (
            None if numbers is None else (*numbers[:FIRST_VERDICT], *(n - 1 for n in numbers[FIRST_VERDICT:]))
        )

    read = _replace(append_calls, "integer_array", integers)


@shown_by("lose_replies", kinds={"duplicate"})
def forget_a_producers_sequences() -> None:
    """Batches of idempotent producers are appended again when they are sent again."""

    def numbers(append: RecordsAppend) -> bytes:
        if append.producer is not None and not append.producer.transactional:
            append = replace(append, producer=None)
        packed: bytes = pack(append)
        return packed

    pack = _replace(append_calls, "_batch_numbers", numbers)


@shown_by("rewind", kinds={"Redis group differs"})
def leave_a_redis_group_ahead() -> None:
    """A Redis group does not follow a commit that goes back."""
    highest: dict[Any, int] = {}

    def apply(self: Projector, changes: Any, done: Callable[[], None]) -> None:
        commits = {change: change.offset or 0 for change in changes}
        followed = [change for change, offset in commits.items() if offset >= highest.get(change.place, 0)]
        highest.update((change.place, commits[change]) for change in followed)
        applied(self, followed, done)

    applied = _replace(Projector, "apply", apply)


@shown_by(kinds={"lost write"}, plan=LOSSY_FAILOVER)
def release_before_the_barrier() -> None:
    """Records are acknowledged with acks=all before the replicas have them."""

    def await_released(self: PartitionLog, end: int, timeout_ms: int, done: Callable[[None], None]) -> None:
        done(None)

    _replace(PartitionLog, "await_released", await_released)


@shown_by(kinds={"vanished read"}, plan=LOSSY_FAILOVER)
def serve_beyond_the_high_watermark() -> None:
    """Consumers get records that the replicas don't have yet."""

    def grown(self: Release) -> None:
        ask(self)
        self._announce()

    def ends(self: LogState) -> Ends:
        return replace(self.known.ends, high_watermark=self.known.ends.log_end)

    ask = _replace(Release, "grown", grown)
    _replace(LogState, "ends", property(ends))


@shown_by(kinds={"inconsistent offset", "untold truncation"}, plan=LOSSY_FAILOVER)
def keep_an_old_epoch() -> None:
    """After a failover, a leader keeps its epoch and reuses the offsets of lost records."""

    def follow(self: Logs, has_moved: Callable[[bytes], bool], again: bool) -> None:
        for logs in self._logs.values():
            for log in logs.values():
                if has_moved(log.stream):
                    log.moved()

    _replace(Logs, "follow_servers", follow)


@shown_by(kinds={"untold truncation", "two values for a consumer", "unread by group"}, plan=LOSSY_FAILOVER)
def forget_where_an_epoch_ended() -> None:
    """A new leader does not note where the log of its predecessor ended."""
    _change_lua("registry", "if found[4] ~= history or history == '' then", "if false then")


@shown_by(kinds={"taken after its end"}, is_simulated=True)
def accept_nothing() -> None:
    """A member of a share group is told that it has accepted records, which stay pending."""
    _change_lua("share", "    acknowledge_ids(stream, group, accepted)\n", "")
    _change_lua("share", "  acknowledge_ids(stream, group, by_type[ACCEPTS])\n", "")


@shown_by(kinds={"never taken"}, is_simulated=True)
def take_a_record_for_a_marker() -> None:
    """Records of transactions are never given to share groups."""

    def runs(*args: Any, **options: Any) -> Any:
        return found(*args, **{**options, "is_committed": True})

    found = _replace(share, "record_runs", runs)
    _change_lua("share", "return is_marker(fields) or (", "return producer_of(fields) or (")


@shown_by(kinds={"two owners", "ended twice"}, is_simulated=True)
def end_all_locks_with_the_first() -> None:
    """When a lock of a share group has ended, all locks end."""
    _change_lua("share", "'IDLE', rule.lock_ms, '-'", "'IDLE', 0, '-'")


if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)].plant()
    main()

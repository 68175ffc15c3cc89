"""A random history of topics, groups and transactions, written to Redis in the documented layout."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.group_records import NamedTopicPartitions, SharePartitions
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tests.spark.keyspace import OFFSETS_TOPIC
from tests.spark.reckoning.group_history import NewerGroup, new_groups
from tests.spark.reckoning.groups import id_text
from tests.spark.reckoning.logs import ABORT, COMMIT, Log
from tests.spark.reckoning.queues import GROUP, Delivered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.offsets.schema import Key, Value
    from tests.spark.keyspace import Keyspace
    from tests.spark.reckoning.group_history import Topics

MINUTE, DAY = 60_000, 86_400_000
BEGINNING = 1_699_833_600_000
TRANSACTION_TOPIC = "__transaction_state"
OFFSETS_PARTITIONS = 50
PRODUCERS = range(1, 5)
# A topic that is created last, without transactions.
LATE = "late"
# The topics: dense offsets, and the number of partitions.
TOPICS = {
    "orders": (False, 2),
    "ledger": (True, 2),
    "reborn": (False, 1),
    "counted": (True, 1),
    "trimmed": (True, 1),
    "gone": (True, 1),
    LATE: (True, 2),
}


@dataclass
class Committer:
    """A group that commits by a habit, and where it last stood."""

    group: str
    habit: str
    at: dict[tuple[str, int], int] = field(default_factory=dict)


HABITS = ("steady", "slow", "stuck", "rewinder", "ahead", "random", "transactional", "native", "silent")
# More groups of some habits.
OTHERS = {"sluggish": "slow", "idle": "stuck", "exact": "transactional", "once": "transactional"}
# A classic group that ends before the quiet week.
FORMER = "former"


class History:
    """What clients, coordinators, retention and administrators did, in the order of time."""

    def __init__(self, keyspace: Keyspace, seed: int) -> None:
        self.keyspace = keyspace
        self.chance = random.Random(seed)
        self.now_ms = BEGINNING
        self.upgraded = False
        self.logs: dict[tuple[str, int], Log] = {}
        self.queues: dict[tuple[str, int], Delivered | None] = {}
        self.ids: dict[str, bytes] = {}
        self.names: dict[str, str] = {}
        """The names of all topics that ever existed, by ID."""
        keyspace.offsets_topic()
        keyspace.topic(TRANSACTION_TOPIC)
        self.transactions = Log(keyspace, TRANSACTION_TOPIC, 0, False)
        self.offsets = [Log(keyspace, OFFSETS_TOPIC, part, True) for part in range(OFFSETS_PARTITIONS)]
        for topic in TOPICS:
            if topic != LATE:
                self.create(topic)
        self.committers = [Committer(habit, habit) for habit in HABITS]
        self.committers += [Committer(group, habit) for group, habit in OTHERS.items()]
        self.committers.append(Committer(FORMER, "silent"))
        self.groups = new_groups(self.chance, "g-")
        members = {"g-classic", "g-newer", "g-converted", "g-streams"}
        self.committers += [Committer(group.name, "random") for group in self.groups if group.name in members]

    def run(self, steps: int) -> None:
        """Let things happen."""
        for _ in self.stages(steps):
            pass

    def stages(self, steps: int) -> Iterator[None]:
        """Let things happen in three stages: until a quiet week, after it, and until a topic is deleted.

        After the week some topics are created again, and a group changes its protocol.
        """
        self._act(steps // 3)
        yield
        self.now_ms += 7 * DAY
        self.create_again()
        self._act(steps // 3)
        yield
        self._act(steps // 3)
        self._leave_open()
        self.delete_topic("gone")
        self._settle()
        self._share()
        yield

    def _act(self, steps: int) -> None:
        acts: dict[Callable[[], None], int] = {
            self.produce: 30,
            self.commit: 40,
            self.remove_offset: 3,
            self.end_transaction: 5,
            self.move_group: 15,
            self.damage: 3,
            self.trim: 2,
            self.add_native: 2,
        }
        for _ in range(steps):
            self.now_ms += self.chance.choice((1, 100, 1_000, 5_000, MINUTE, 3 * MINUTE))
            self.chance.choices(list(acts), list(acts.values()))[0]()

    @property
    def topics(self) -> Topics:
        return {topic: (self.ids[topic], TOPICS[topic][1]) for topic in self.ids}

    def create(self, topic: str) -> None:
        dense, partitions = TOPICS[topic]
        configs = {"offset.assignment": "dense"} if dense else None
        self.ids[topic] = self.chance.randbytes(16)
        self.names[id_text(self.ids[topic])] = topic
        self.keyspace.topic(topic, partitions, configs, topic_id=str(UUID(bytes=self.ids[topic])))
        for partition in range(partitions):
            self.logs[topic, partition] = Log(self.keyspace, topic, partition, dense)

    def delete_topic(self, topic: str) -> None:
        del self.ids[topic]
        for place in [place for place in self.logs if place[0] == topic]:
            stream = self.logs.pop(place).stream
            self.keyspace.client.delete(stream, f"{{{stream}}}:meta", f"{{{stream}}}:aborted")
        self.keyspace.client.hdel("{korvet}:topics", topic)

    def create_again(self) -> None:
        """Topics are deleted with most of their offsets, and created again; a group is upgraded."""
        for topic in ("reborn", "counted"):
            self.delete_topic(topic)
            for committer in self.committers:
                for place in [place for place in committer.at if place[0] == topic]:
                    if self.chance.random() < 0.8:
                        self.write(committer.group, OffsetCommitKey(committer.group, *place), None)
                    del committer.at[place]
            self.create(topic)
        self.write("g-converted", GroupMetadataKey("g-converted"), None)
        empty = GroupMetadataValue("consumer", 9, None, None, self.now_ms - 7 * DAY, ())
        self.write(FORMER, GroupMetadataKey(FORMER), empty)
        self.upgraded = True

    def produce(self) -> None:
        log = self.chance.choice(list(self.logs.values()))
        producer = self.chance.choice((None, None, None, None, *PRODUCERS))
        for _ in range(self.chance.choice((1, 1, 3, 8))):
            # Clocks of producers are ahead or behind; on dense topics the timestamps are all that is known.
            skew_ms = 0 if log.dense else self.chance.choice((0, 0, -2_000, 500))
            log.append(self.now_ms, None, b"value", self.now_ms + skew_ms, producer)

    def add_native(self) -> None:
        """A Redis application adds or deletes an entry."""
        log = self.chance.choice([log for log in self.logs.values() if not log.dense])
        if log.entries and self.chance.random() < 0.3:
            log.delete(self.chance.choice(log.entries).offset)
        else:
            log.native(self.now_ms)

    def trim(self) -> None:
        log = self.logs[self.chance.choice((("trimmed", 0), ("orders", 0), ("orders", 1)))]
        log.trim(len(log.entries) - len(log.entries) // 3)

    def _leave_open(self) -> None:
        """A transaction stays open, and one of the offsets in it is removed."""
        committer = next(one for one in self.committers if one.habit == "transactional")
        keys = [OffsetCommitKey(committer.group, "orders", partition) for partition in (0, 1)]
        for key in keys:
            self.write(committer.group, key, self._value(committer, "orders", 5), PRODUCERS[0])
        self.write(committer.group, keys[0], None)

    def _settle(self) -> None:
        """Half an hour with a record a minute: a group falls behind, another stops, a third one begins."""
        self.create(LATE)
        for minute in range(30):
            self.now_ms += MINUTE
            for partition in (0, 1):
                self.logs[LATE, partition].append(self.now_ms, None, b"value")
            positions = {"falling": minute // 2, "halted": minute + 1, "starting": minute}
            until = {"falling": 30, "halted": 5, "starting": 0}
            for group, position in positions.items():
                if minute < until[group] or (group == "starting" and minute == 29):
                    value = OffsetCommitValue(position, commit_timestamp_ms=self.now_ms)
                    self._add(group, OffsetCommitKey(group, LATE, 0), value)

    def _share(self) -> None:
        """A share group works. It had begun with a topic that is gone, and with a partition nobody read."""
        topics = ("orders", "counted", LATE)
        places = [(topic, partition) for topic in topics for partition in range(TOPICS[topic][1])]
        self.queues = {place: Delivered(self.logs[place]) for place in places}
        self.queues[LATE, 1] = None
        for delivered in filter(None, self.queues.values()):
            delivered.run(self.chance)
        named = tuple(
            NamedTopicPartitions(self.ids[topic], topic, tuple(range(TOPICS[topic][1]))) for topic in topics
        )
        gone = NamedTopicPartitions(self.chance.randbytes(16), "gone", (0,))
        key = GroupRecordKey(GROUP, 15)
        self.write(GROUP, key, SharePartitions((), (gone,), ()))
        self.write(GROUP, key, SharePartitions((gone,), (*named, gone), ()))
        self.write("g-removed", GroupRecordKey("g-removed", 15), SharePartitions((), named, ()))
        self.write("g-removed", GroupRecordKey("g-removed", 15), None)

    def commit(self) -> None:
        committer = self.chance.choice(self.committers)
        if committer.habit == "silent" and self.upgraded:
            return
        # Few places each, so that windows of commits fill.
        topic = self.chance.choice(sorted(self.ids)[:: 1 + len(committer.group) % 2])
        partition = self.chance.randrange(TOPICS[topic][1])
        position = self._position(committer, topic, partition)
        committer.at[topic, partition] = position
        producer = self.chance.choice(PRODUCERS) if committer.habit == "transactional" else None
        key = OffsetCommitKey(committer.group, topic, partition, self.chance.choice((1, 1, 1, 0)))
        self.write(committer.group, key, self._value(committer, topic, position), producer)

    def _position(self, committer: Committer, topic: str, partition: int) -> int:
        log, at = self.logs[topic, partition], committer.at.get((topic, partition))
        offsets = [entry.offset for entry in log.entries]
        match committer.habit:
            case "steady" | "native":
                return log.end
            case "slow":
                later = [offset for offset in offsets if offset > (at or -1)]
                return (later[0] + 1) if later else log.end
            case "stuck" | "silent":
                return log.start if at is None else at
            case "rewinder" if at and self.chance.random() < 0.3:
                return self.chance.randrange(at)
            case "ahead":
                return log.end + self.chance.choice((0, 5, MINUTE << 10, 2**60))
        return self.chance.choice([0, *offsets, *(offset + 1 for offset in offsets)])

    def _value(self, committer: Committer, topic: str, position: int) -> OffsetCommitValue:
        chance, version = self.chance, self.chance.choice((0, 1, 2, 3, 4, 4, 4))
        odd_ms = chance.random() < 0.01
        at_ms = chance.choice((-1, 2**53)) if odd_ms else self.now_ms - chance.choice((0, 0, 0, 500))
        return OffsetCommitValue(
            position,
            chance.choice((-1, 0, 7)) if version >= 3 else -1,
            chance.choice(("", "", "half way \u2713")),
            at_ms,
            at_ms + chance.choice((MINUTE, 9 * DAY)) if version == 1 else -1,
            chance.choice((None, self.ids[topic])) if version == 4 else None,
            version,
        )

    def remove_offset(self) -> None:
        committer = self.chance.choice(self.committers)
        if committer.at:
            place = self.chance.choice(sorted(committer.at))
            del committer.at[place]
            self.write(committer.group, OffsetCommitKey(committer.group, *place), None)

    def end_transaction(self) -> None:
        """A marker into every log with records of the transaction."""
        producer = self.chance.choice(PRODUCERS)
        outcome = COMMIT if self.chance.random() < 0.7 else ABORT
        for log in (*self.offsets, *self.logs.values()):
            if producer in log.open_producers():
                log.mark(self.now_ms, producer, outcome)

    def move_group(self) -> None:
        group = self.chance.choice(self.groups)
        if group.name == "g-converted" and isinstance(group, NewerGroup) != self.upgraded:
            return
        for key, value in group.act(self.now_ms, self.topics):
            self.write(group.name, key, value)

    def damage(self) -> None:
        """A record that is cut, has an unknown version or type, or no key."""
        chance, group = self.chance, self.chance.choice(HABITS)
        commit = encode_key(OffsetCommitKey(group, "orders", 0))
        state = encode_key(GroupMetadataKey(group))
        value = encode_value(OffsetCommitValue(5, 0, "text", self.now_ms))
        key, data = chance.choice(
            (
                (None, value),
                (b"\0", value),
                (commit[:-3], value),
                (commit, value[: chance.randrange(len(value))]),
                (commit, b"\0\x09future"),
                (commit, value[:14] + b"\0\2\xff\xfe" + value[-8:]),
                (state[:-1], b""),
                (state, b"\0\3\0"),
                (state, b"\0\x09future"),
                (b"\0\x09other", b"\0\0x"),
                (b"\0\x18other", b"\0\0x"),
            )
        )
        self.offsets[partition_for(group)].append(self.now_ms, key, data)

    def write(self, group: str, key: Key, value: Value | None, producer: int | None = None) -> None:
        """Add a record of the group to `__consumer_offsets`. Some records are late."""
        self._add(group, key, value, producer, self.chance.choice((0, 0, 0, 0, 90 * MINUTE)))

    def _add(
        self, group: str, key: Key, value: Value | None, producer: int | None = None, late_ms: int = 0
    ) -> None:
        data = None if value is None else encode_value(value)
        log = self.offsets[partition_for(group)]
        log.append(self.now_ms, encode_key(key), data, self.now_ms - late_ms, producer)

    def after(self, as_of_ms: int) -> None:
        """Add records and commits that are newer than the tables."""
        self.now_ms = as_of_ms + 1
        for (topic, partition), log in self.logs.items():
            if not log.dense:
                log.append(self.now_ms, None, b"later")
            key = OffsetCommitKey("steady", topic, partition)
            value = OffsetCommitValue(log.end, commit_timestamp_ms=self.now_ms)
            self.offsets[partition_for("steady")].append(self.now_ms, encode_key(key), encode_value(value))

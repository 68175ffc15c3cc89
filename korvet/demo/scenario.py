"""The steps of the demo.

Each step reads the numbers that it shows back from the broker, from Redis or from the report, and compares
them with the clients' results. A difference raises DemoFailed.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import redis

from korvet.config.keys import clean_environment
from korvet.demo import kafka
from korvet.demo.failure import DemoFailed, expect
from korvet.demo.kafka import Member, Record
from korvet.demo.screen import Screen
from korvet.demo.server import DemoServer
from korvet.offsets.packing import entry_id, offset_of
from korvet.offsets.schema import GroupMetadataValue

PARTITIONS = {"orders": 3, "payments": 1, "sensors": 1}
ORDERS, PAYMENTS, NATIVE = 3_000, 1_000, 40
COMMAND_TIMEOUT_S = 60.0
# Age of the oldest and the newest order, so that the report shows lag in time.
_OLDEST_MS, _NEWEST_MS = 30 * 60_000, 2 * 60_000
_DUMP_LINES = 4
_PAGE = 1_000


class GroupClaim(NamedTuple):
    """The numbers that the report must contain for a group."""

    unread: int
    members: int


def stream(topic: str, partition: int) -> str:
    """The Redis key of a partition in the default keyspace."""
    return f"korvet:{topic}:{partition}"


class Scenario:
    """The clients of the demo, and the claims that the report must meet. Close it before the server."""

    def __init__(self, server: DemoServer, screen: Screen) -> None:
        self.claims: dict[str, GroupClaim] = {}
        self._server = server
        self._screen = screen
        self._open = ExitStack()
        self._produced: dict[str, dict[int, list[int]]] = {}
        self._client = redis.Redis(
            unix_socket_path=str(server.redis_socket), decode_responses=True, protocol=2
        )
        self._open.callback(self._client.close)

    def run(self) -> None:
        """Run all steps in order. Raises DemoFailed, KafkaException or RedisError."""
        for step in (
            self._create,
            self._produce,
            self._four_groups,
            self._rebalance,
            self._static_member,
            self._native_writer,
            self._native_reader,
            self._dump,
        ):
            step()

    def close(self) -> None:
        """Close all clients."""
        self._open.close()

    def _create(self) -> None:
        with self._screen.step("A Kafka client creates topics") as step:
            kafka.create_topics(self._server.bootstrap, PARTITIONS)
            parts = ", ".join(f"{name} ({count})" for name, count in PARTITIONS.items())
            step.say(f"{parts} partitions")

    def _produce(self) -> None:
        title = f"A Kafka producer writes {ORDERS + PAYMENTS:,} records; each is a stream entry in Redis"
        with self._screen.step(title) as step:
            for topic, records in (("orders", _orders()), ("payments", _payments())):
                self._produced[topic] = kafka.produce(self._server.bootstrap, topic, records)
            for topic, by_partition in self._produced.items():
                for partition, acknowledged in by_partition.items():
                    found = [offset_of(found_id) for found_id in self._entries(topic, partition)]
                    expect(f"offsets of the entries of {topic}-{partition}", found, acknowledged)
            counts = [self._client.xlen(stream("orders", part)) for part in range(PARTITIONS["orders"])]
            expect("entries of orders", sum(counts), ORDERS)
            partition, offsets = next(iter(self._produced["orders"].items()))
            place = entry_id(offsets[0])
            raw: Any = self._client.xrange(stream("orders", partition), place, place)
            ((_, fields),) = raw
            step.say(
                f"orders: {' + '.join(map(str, counts))} entries; every acknowledged offset is an entry ID:"
            )
            step.say(f"offset {offsets[0]} = entry {place} of {stream('orders', partition)}", "cyan")
            step.say(f"XRANGE returns {_flat(fields)}", "cyan")

    def _four_groups(self) -> None:
        with self._screen.step("Four consumer groups read orders, each in its own way") as step:
            rows: list[tuple[object, ...]] = []
            for group, habit, count, stays in (
                ("billing", "keeps up", ORDERS, True),
                ("search-index", "lags", ORDERS * 3 // 5, True),
                ("audit", "stopped reading, still a member", 60, True),
                ("old-export", "left, without a successor", 500, False),
            ):
                member = self._member(group, "orders", f"{group}-1")
                member.take(count)
                member.commit_all()
                if not stays:
                    member.close()
                unread = self._unread(group, "orders")
                expect(f"unread records of {group}", unread, ORDERS - count)
                self._claim(group, unread, members=int(stays))
                rows.append((group, habit, ORDERS - unread, unread))
            step.table(("group", "", "read", "unread"), rows)

    def _rebalance(self) -> None:
        with self._screen.step("Members of a group join and leave; partitions move between them") as step:
            count = PARTITIONS["orders"]
            members: list[Member] = []
            for number in (1, 2, 3):
                members.append(self._member("workers", "orders", f"worker-{number}"))
                kafka.share(members, count)
            members.pop(0).close()
            kafka.share(members, count)
            self._read_all(members, "workers", "orders")
            states = _generations(self._records("workers"))
            expect("members of workers over time", [size for _, size in states], [1, 2, 3, 2])
            expect(
                "generations of workers", [one < two for (one, _), (two, _) in pairwise(states)], [True] * 3
            )
            expect("unread records of workers", self._unread("workers", "orders"), 0)
            self._claim("workers", 0, members=2)
            shown = ", ".join(f"generation {number}: {size} members" for number, size in states)
            step.say(f"workers, from __consumer_offsets: {shown}".replace("1 members", "1 member"))
            owners = (f"{member.client_id} has {sorted(member.partitions())}" for member in members)
            step.say(f"now {', '.join(owners)}; all {ORDERS:,} records read")

    def _static_member(self) -> None:
        with self._screen.step("A static member restarts without a rebalance") as step:
            count = PARTITIONS["orders"]
            pair = [
                self._member("screens", "orders", f"screen-{number}", instance=f"screen-{number}")
                for number in (1, 2)
            ]
            kafka.share(pair, count)
            self._read_all(pair, "screens", "orders")
            before, owned = _newest(self._records("screens")), pair[1].partitions()
            pair[1].close()
            pair[1] = self._member("screens", "orders", "screen-2", instance="screen-2")
            kafka.share(pair, count)
            after = _newest(self._records("screens"))
            expect("generation after the restart", after.generation, before.generation)
            expect("partitions after the restart", pair[1].partitions(), owned)
            old, new = (_member_of(state, "screen-2") for state in (before, after))
            if old == new:
                raise DemoFailed(f"screen-2 is still member {old} after its restart")
            self._claim("screens", 0, members=2)
            step.say(
                f"screen-2 is a new member, still with {sorted(owned)}, in generation {after.generation}"
            )

    def _native_writer(self) -> None:
        with self._screen.step("A Redis application writes with XADD, a Kafka consumer reads it") as step:
            name = stream("sensors", 0)
            member = self._member("alerts", "sensors", "alerts-1")
            kafka.share([member], 1)
            degrees = [f"{20 + number / 4}" for number in range(NATIVE)]
            began = time.monotonic()
            ids = [str(self._client.xadd(name, {"sensor": "s-7", "celsius": each})) for each in degrees]
            first = member.take(1)
            waited_ms = (time.monotonic() - began) * 1_000
            keys = (name, f"{{{name}}}:index", f"{{{name}}}:meta")
            ids.append(str(self._client.fcall("korvet_xadd", 3, *keys, "sensor", "s-8", "celsius", "9.5")))
            found = [*first, *member.take(NATIVE)]
            expect(
                "offsets of the entries of XADD", [read.offset for read in found], list(map(offset_of, ids))
            )
            values = [json.loads(read.value)["celsius"] for read in found]
            expect("values of the entries of XADD", values, [*degrees, "9.5"])
            member.commit()
            expect("unread records of alerts", self._unread("alerts", "sensors"), 0)
            self._claim("alerts", 0, members=1)
            step.say(
                f"{NATIVE} XADDs and one FCALL korvet_xadd, all read; the first after {waited_ms:.0f} ms"
            )
            step.say(f"entry {ids[0]} = offset {found[0].offset}: {found[0].value.decode()}", "cyan")

    def _native_reader(self) -> None:
        title = "A Kafka consumer commits, a Redis reader of the same group continues there"
        with self._screen.step(title) as step:
            quarter = PAYMENTS // 4
            member = self._member("bridge", "payments", "bridge-1")
            member.take(quarter)
            member.commit()
            member.close()
            (place,) = kafka.committed(self._server.bootstrap, "bridge", "payments", 1).values()
            name, wanted = stream("payments", 0), self._produced["payments"][0]
            (row,) = [group for group in self._client.xinfo_groups(name) if group["name"] == "bridge"]
            expect("entries that Redis counts as unread", row["lag"], PAYMENTS - quarter)
            reply: Any = self._client.xreadgroup("bridge", "native", {name: ">"}, count=3)
            ((_, read),) = reply
            found = [str(entry) for entry, _ in read]
            expect(
                "entries of XREADGROUP", found, [entry_id(offset) for offset in wanted[quarter : quarter + 3]]
            )
            waiting: Any = self._client.xpending_range(name, "bridge", "-", "+", 10)
            expect("XPENDING", [entry["message_id"] for entry in waiting], found)
            expect("unread records of bridge", self._unread("bridge", "payments"), PAYMENTS - quarter)
            self._claim("bridge", PAYMENTS - quarter, members=0)
            step.say(f"committed: offset {place} ({quarter} of {PAYMENTS:,} payments)")
            step.say(f"XREADGROUP GROUP bridge native STREAMS {name} > begins with {found[0]}", "cyan")
            step.say("nothing before it is pending: the commit acknowledged it in Redis too")

    def _dump(self) -> None:
        with self._screen.step("The commits, as Kafka's formatter prints them") as step:
            options = ("--bootstrap-server", self._server.bootstrap, "--group", "search-index")
            text = run_korvet("offsets", "dump", "--formatter", "offsets", *options)
            lines = text.splitlines()
            last = {}
            for line in lines:
                document = json.loads(line)
                last[document["key"]["data"]["partition"]] = document["value"]["data"]["offset"]
            partitions = PARTITIONS["orders"]
            answered = kafka.committed(self._server.bootstrap, "search-index", "orders", partitions)
            expect("last commits in the dump", last, answered)
            step.say("$ korvet offsets dump --formatter offsets --group search-index", "dim")
            for line in lines[-_DUMP_LINES:]:
                step.say(line, "cyan")

    def _claim(self, group: str, unread: int, *, members: int) -> None:
        self.claims[group] = GroupClaim(unread, members)

    def _member(self, group: str, topic: str, client_id: str, *, instance: str | None = None) -> Member:
        member = Member(self._server.bootstrap, group, topic, client_id, instance=instance)
        self._open.callback(member.close)
        return member

    def _read_all(self, members: Iterable[Member], group: str, topic: str) -> None:
        """Let the members read and commit until the group has no unread records."""

        def done() -> bool:
            came = 0
            for member in members:
                came += len(member.poll())
                member.commit()
            return came == 0 and self._unread(group, topic) == 0

        kafka.until(done, lambda: f"{self._unread(group, topic)} records of {topic} are unread in {group}")

    def _records(self, group: str) -> list[GroupMetadataValue]:
        records = kafka.group_records(self._server.bootstrap, group)
        return [value for _, value in records if isinstance(value, GroupMetadataValue)]

    def _entries(self, topic: str, partition: int) -> list[str]:
        """Returns all entry IDs of a partition (XRANGE)."""
        found: list[str] = []
        start = "-"
        while True:
            page = self._client.xrange(stream(topic, partition), min=start, count=_PAGE)
            if not page:
                return found
            found += [str(row[0]) for row in page]
            start = f"({found[-1]}"

    def _unread(self, group: str, topic: str) -> int:
        """Counts the entries at or after the committed offset in Redis."""
        count = PARTITIONS[topic]
        places = kafka.committed(self._server.bootstrap, group, topic, count)
        unread = 0
        for partition in range(count):
            ids = self._entries(topic, partition)
            unread += sum(offset_of(found) >= places.get(partition, 0) for found in ids)
        return unread


def run_korvet(*arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run a korvet command. Returns its output. Raises DemoFailed with its messages if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "korvet", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=clean_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise DemoFailed(f"`korvet {arguments[0]}` took more than {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise DemoFailed(f"`korvet {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout


def _orders() -> Iterable[Record]:
    now_ms = time.time_ns() // 1_000_000
    step_ms = (_OLDEST_MS - _NEWEST_MS) // ORDERS
    for number in range(ORDERS):
        value = {"order": number, "customer": f"c-{number % 97}", "cents": 500 + number * 37 % 9_000}
        headers = [
            ("source", b"web" if number % 3 else b"shop"),
            ("trace", b"%08x" % (number * 2_654_435_761 % 2**32)),
        ]
        at_ms = now_ms - _OLDEST_MS + number * step_ms
        yield Record(b"c-%d" % (number % 97), json.dumps(value).encode(), headers, at_ms)


def _payments() -> Iterable[Record]:
    now_ms = time.time_ns() // 1_000_000
    for number in range(PAYMENTS):
        value = {"payment": number, "order": number, "cents": 500 + number * 37 % 9_000}
        at_ms = now_ms - _NEWEST_MS
        yield Record(b"order-%d" % number, json.dumps(value).encode(), [("currency", b"EUR")], at_ms)


def _generations(states: Iterable[GroupMetadataValue]) -> list[tuple[int, int]]:
    """Returns (generation, members) of each state of a group since its first member, without repetitions."""
    found: list[tuple[int, int]] = []
    for state in states:
        if state.generation == 0:
            continue
        if not found or found[-1][1] != len(state.members):
            found.append((state.generation, len(state.members)))
    return found


def _newest(states: list[GroupMetadataValue]) -> GroupMetadataValue:
    if not states:
        raise DemoFailed("the group has no record in __consumer_offsets")
    return states[-1]


def _member_of(state: GroupMetadataValue, instance: str) -> str:
    """Returns the member ID of a static member."""
    return next((member.member_id for member in state.members if member.group_instance_id == instance), "")


def _flat(fields: Any) -> str:
    """Formats an entry's fields on one line."""
    return "  ".join(f"{name} {value}" for name, value in fields.items())

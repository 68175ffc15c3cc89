"""kill -9 of a Redis with an append-only file under load, and the replay of the file.

Nothing acknowledged is lost, no batch is there in part or twice, the index counts what the stream has, and
each stream equals, byte for byte, one that plain XADDs of its entries make.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import uvloop

from korvet.log.values import Appended
from korvet.offsets.packing import unpack
from korvet.records.compression import compress
from korvet.records.kernel import parse_batch
from korvet.redis.keys import Keyspace
from korvet.store import Store
from tests.support.logs import admit
from tests.support.module import loads_module
from tests.support.polling import until_async
from tests.support.received import ReceivedBatch
from tests.support.records import NOW_MS
from tests.support.redis_server import Server, server_programs
from tests.unit.records.forms import Record, batch_bytes, records_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from korvet.log.partition_log import PartitionLog
    from korvet.redis.errors import StorageError

pytestmark = [pytest.mark.faults]

SEED = 20261125
KILLS = 5
PARTITIONS = 2
IN_FLIGHT = 6
LZ4 = 3
LONGEST_LOAD_S, LONGEST_REWRITE_S = 0.15, 0.05
# Topics whose streams are compared after later kills, too.
KEPT_TOPICS = 4
ENDED_S, WAIT_S = 60, 20

# Copies all entries of a stream to another one, with XADD.
COPY = """
local from = '-'
while true do
  local entries = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', 500)
  for _, entry in ipairs(entries) do
    redis.call('XADD', KEYS[2], entry[1], unpack(entry[2]))
    from = '(' .. entry[1]
  end
  if #entries == 0 then
    return redis.call('XLEN', KEYS[2])
  end
end
"""


class Policy(NamedTuple):
    """How the server writes its file. Below `always`, the last batches before a kill may be lost."""

    options: tuple[str, ...]
    keeps_all: bool


POLICIES = {
    "always": Policy(("--appendfsync", "always"), True),
    "everysec": Policy(("--appendfsync", "everysec"), False),
    "rewritten as commands": Policy(("--appendfsync", "always", "--aof-use-rdb-preamble", "no"), True),
}
LONG_KILLS = {"always": 300, "everysec": 100, "rewritten as commands": 100}


def received(records: list[Record], codec: int) -> ReceivedBatch:
    """A producer's batch, compressed with the codec."""
    section = records_bytes(records)
    data = batch_bytes(
        compress(codec, section) if codec else section,
        len(records),
        base_ms=records[0].timestamp_ms,
        attributes=codec,
    )
    return ReceivedBatch(data, parse_batch(data, 0), section if codec else None)


class Writer:
    """Appends numbered batches without pause until it is stopped, and keeps the outcome of each."""

    def __init__(self, log: PartitionLog, source: random.Random) -> None:
        self.log = log
        self.batches: list[list[Record]] = []
        self.outcomes: dict[int, Appended | StorageError] = {}
        self.answered_late: set[int] = set()
        """Batches whose outcome came after the kill: they may have been appended after the restart."""
        self.stopped = False
        self._source = source
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    async def run(self) -> None:
        """Returns when all batches have an outcome."""
        while not self.stopped:
            await self._slots.acquire()
            number = len(self.batches)
            self.batches.append(self._records(number))
            batch = received(self.batches[number], self._source.choice((0, 0, LZ4)))
            self.log.append(batch, None, admit, partial(self._ended, number), followed=True)
            await asyncio.sleep(0)
        for _ in range(IN_FLIGHT):
            await self._slots.acquire()

    def _ended(self, number: int, outcome: Appended | StorageError) -> None:
        self.outcomes[number] = outcome
        if self.stopped:
            self.answered_late.add(number)
        self._slots.release()

    def _records(self, number: int) -> list[Record]:
        size = self._source.choice((0, 10, 100, 1000))
        headers = self._source.choice(((), ((b"h", b"v"), (b"null", None))))
        return [
            Record(
                self._source.choice((None, b"", b"key")),
                b"%d-%d-" % (number, index) + self._source.randbytes(size),
                NOW_MS + self._source.randrange(3),
                headers,
            )
            for index in range(self._source.choice((1, 3, 4, 20, 120)))
        ]

    def check(self, entries: list[tuple[bytes, dict[bytes, bytes]]], *, keeps_all: bool) -> None:
        """Compare the stream with the batches and their outcomes."""
        found = {entry: fields[b"value"] for entry, fields in entries}
        assert len(set(found.values())) == len(found), "an entry is there twice"
        complete = self._complete(found)
        appended = {
            number: outcome for number, outcome in self.outcomes.items() if isinstance(outcome, Appended)
        }
        ordered = sorted(appended, key=lambda number: appended[number].base_offset)
        lost = [number for number in ordered if number not in complete]
        if keeps_all:
            assert lost == [], f"{len(lost)} of {len(appended)} acknowledged batches are lost"
        older = [number for number in ordered if number in lost or number not in self.answered_late]
        assert lost == older[len(older) - len(lost) :], "batches are lost before others that are not"
        for number in complete & appended.keys():
            base = appended[number].base_offset
            expected = [record.value for record in self.batches[number]]
            at = [b"%d-%d" % unpack(base + index) for index in range(len(expected))]
            assert [found.get(entry) for entry in at] == expected

    def _complete(self, found: dict[bytes, bytes]) -> set[int]:
        """The batches in the stream: each is complete, and its records follow each other."""
        values, complete = list(found.values()), set()
        at = 0
        while at < len(values):
            number = int(values[at].partition(b"-")[0])
            batch = [record.value for record in self.batches[number]]
            assert values[at : at + len(batch)] == batch, f"batch {number} is there in part"
            complete.add(number)
            at += len(batch)
        return complete


class Victim:
    """A server with an append-only file that is killed again and again, and a broker's store on it."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.program = server_programs()[0]
        self.folder = folder
        self.policy = policy
        self.server = self.start()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.store = self.runner.run(Store.open(self.server.url, Keyspace("kill")))
        self.source = random.Random(SEED)
        self.dumps: dict[str, list[bytes | None]] = {}
        """Per topic: its streams after the replay."""
        self.batches_in_file = 0

    def start(self) -> Server:
        return Server(self.program, self.folder, "--appendonly", "yes", *self.policy.options)

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()
        self.server.stop()

    def kill_under_load(self, number: int) -> list[Writer]:
        """Returns the writers of a new topic, during whose work the server was killed and started again."""
        return self.runner.run(self._kill_under_load(f"t{number}"))

    async def _kill_under_load(self, name: str) -> list[Writer]:
        topic = await self.store.catalogue.create(name, PARTITIONS)
        logs = [self.store.logs.get(topic, partition) for partition in range(PARTITIONS)]
        writers = [Writer(log, self.source) for log in logs]
        work = [asyncio.create_task(writer.run()) for writer in writers]
        await asyncio.sleep(self.source.uniform(0.01, LONGEST_LOAD_S))
        # The server begins a rewrite by itself, too.
        if (
            self.source.random() < 0.5
            and not self.server.client.info("persistence")["aof_rewrite_in_progress"]
        ):
            self.server.client.bgrewriteaof()
            await asyncio.sleep(self.source.uniform(0, LONGEST_REWRITE_S))
        self.server.stop()
        for writer in writers:
            writer.stopped = True
        self.batches_in_file += sum(
            path.read_bytes().count(b"KORVET.ADD") for path in self.folder.glob("appendonlydir/*.aof")
        )
        self.server = await asyncio.to_thread(self.start)
        await asyncio.wait_for(asyncio.gather(*work), ENDED_S)
        await until_async(self._reconnected, WAIT_S, "the store is connected again")
        return writers

    async def _reconnected(self) -> bool:
        return self.store.commands.links(b"").server.connected

    def check(self, number: int, writers: list[Writer], scratch: Any) -> None:
        """Compare all streams: those of the newest topic with its batches, others with what they were."""
        client: Any = self.server.client
        stream_of = self.store.commands.keyspace.stream
        for name, dumps in self.dumps.items():
            streams = [stream_of(name, partition) for partition in range(PARTITIONS)]
            assert [client.dump(stream) for stream in streams] == dumps, f"{name} has changed"
        for writer in writers:
            entries = client.xrange(writer.log.stream)
            writer.check(entries, keeps_all=self.policy.keeps_all)
            assert self.runner.run(self._count(writer.log)) == len(entries), "the index is wrong"
        self.dumps[f"t{number}"] = [self._same_as_plain(writer.log.stream, scratch) for writer in writers]
        if len(self.dumps) > KEPT_TOPICS:
            oldest = next(iter(self.dumps))
            del self.dumps[oldest]
            self.runner.run(self.store.catalogue.delete(oldest))

    @staticmethod
    async def _count(log: PartitionLog) -> int:
        """The number of records by the log's index."""
        return await log.queries.count(0, (await log.bounds()).log_end)

    def _same_as_plain(self, stream: bytes, scratch: Any) -> bytes | None:
        """The stream's DUMP, which is also that of a stream of plain XADDs; None if it has no entry: on a
        busy machine the server may have been killed before the first one.
        """
        dump: bytes | None = self.server.client.dump(stream)
        if dump is None:
            return None
        scratch.flushall()
        scratch.restore("killed", 0, dump)
        assert scratch.eval(COPY, 2, "killed", "plain") > 0
        assert scratch.dump("plain") == dump
        return dump


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of another server of the same program."""
    server = Server(server_programs()[0], tmp_path_factory.mktemp("scratch"))
    yield server.client
    server.stop()


def killed(policy: Policy, kills: int, folder: Path, scratch: Any) -> None:
    victim = Victim(folder, policy)
    try:
        for number in range(kills):
            writers = victim.kill_under_load(number)
            victim.check(number, writers, scratch)
        if loads_module(victim.program):
            assert victim.batches_in_file > kills, "the module is used"
    finally:
        victim.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_kill_and_replay(policy: str, tmp_path: Path, scratch: Any) -> None:
    killed(POLICIES[policy], KILLS, tmp_path, scratch)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", POLICIES)
def test_five_hundred_kills(policy: str, tmp_path: Path, scratch: Any) -> None:
    killed(POLICIES[policy], LONG_KILLS[policy], tmp_path, scratch)

"""KORVET.ADD beside the XADDs that it replaces: the streams are equal byte for byte."""

from __future__ import annotations

import itertools
import random
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.offsets.packing import MAX_OFFSET, entry_id
from korvet.records.batch import BatchError
from korvet.storage import module
from korvet.storage.module import VERSION
from tests.storage.module_streams import add, add_command, add_plainly, dumps, replicas_version, send, xadds
from tests.support.module import UNBUILT, module_built
from tests.support.redis_server import Server, server_programs
from tests.unit.records.forms import (
    BASE_MS,
    MAX_INT64,
    MIN_INT64,
    Record,
    batch_bytes,
    nullable,
    records_bytes,
    varint,
    whole_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOCK = BASE_MS << 10
SOURCE = Path(module.__file__).with_name("korvet_module.c")
# Two streams with the same contents: one gets XADDs, the other KORVET.ADD.
PLAIN, ADDED = "plain", "added"
BOTH = (PLAIN, ADDED)


@pytest.fixture(scope="session", params=server_programs(), ids=lambda path: Path(path).name)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the module, for the tests of this file alone."""
    if not module_built():
        pytest.skip(UNBUILT)
    running = Server(request.param, tmp_path_factory.mktemp("redis"), module=True)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    start_over(server)


def start_over(server: Server) -> None:
    """Two equal streams, which have an entry each."""
    server.client.delete(*BOTH)
    for key in BOTH:
        server.client.xadd(key, {"native": "1"}, id="0-1")


payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=300)
timestamps_ms = (
    st.integers(-1, 1 << 42)
    | st.integers(BASE_MS - 1000, BASE_MS + 1000)
    | st.integers(MIN_INT64, MAX_INT64)
    | st.sampled_from([MIN_INT64, MIN_INT64 + BASE_MS, MIN_INT64 + BASE_MS - 1, MAX_INT64])
)
headers = st.lists(st.tuples(st.binary(max_size=12), payloads), max_size=4).map(tuple)
records_of = st.builds(Record, payloads, payloads, timestamps_ms, headers)
ordinary_records = st.builds(Record, payloads, payloads, st.integers(BASE_MS, BASE_MS + 1000), headers)
producers = st.none() | st.tuples(
    st.integers(0, MAX_INT64), st.integers(0, 32767), st.integers(0, (1 << 31) - 1)
)


class Append(NamedTuple):
    """A batch; `gap` is the distance of its first ID to the entry before it."""

    records: list[Record]
    producer: tuple[int, int, int] | None
    timestamps: bool
    gap: int


class Native(NamedTuple):
    """An entry of a native client."""

    fields: list[str]
    gap: int


class Trim(NamedTuple):
    """XTRIM MAXLEN; exact or not."""

    length: int
    exact: bool


class Delete(NamedTuple):
    """XDEL of an entry, by its place."""

    place: int


gaps = st.integers(1, 3) | st.integers(1, 3000)
steps = st.lists(
    st.builds(Append, st.lists(ordinary_records, min_size=1, max_size=40), producers, st.booleans(), gaps)
    | st.builds(Native, st.lists(st.sampled_from(["key", "value", "x"]), min_size=1, max_size=3), gaps)
    | st.builds(Trim, st.integers(0, 40), st.booleans())
    | st.builds(Delete, st.integers(0, 60)),
    min_size=1,
    max_size=10,
)
nodes = st.sampled_from([(100, 4096), (1, 4096), (7, 0), (0, 200), (0, 0)])
# Offsets of dense topics count from the ID 0-1, those of others are times.
beginnings = st.integers(1, 2000) | st.integers(CLOCK + 1000, CLOCK + 1030)


def batch_of(records: list[Record], producer: tuple[int, int, int] | None, base_ms: int = BASE_MS) -> bytes:
    section = records_bytes(records, base_ms)
    if producer is None:
        return batch_bytes(section, len(records), base_ms=base_ms)
    return batch_bytes(section, len(records), base_ms=base_ms, attributes=16, producer=producer)


class Streams:
    """Both streams, to which the same steps are applied."""

    def __init__(self, server: Server, position: int) -> None:
        self.server = server
        self.client = server.client
        self.position = position

    def apply(self, step: Append | Native | Trim | Delete) -> None:
        match step:
            case Append(records, producer, timestamps, gap):
                batch = batch_of(records, producer)
                self.position += gap
                add_plainly(self.server, PLAIN, self.position, batch, timestamps=timestamps)
                last = add(self.server, ADDED, self.position, batch, timestamps=timestamps)
                self.position += len(records) - 1
                assert last == entry_id(self.position).encode()
            case Native(fields, gap):
                self.position += gap
                for key in BOTH:
                    self.client.xadd(key, dict.fromkeys(fields, "v"), id=entry_id(self.position))
            case Trim(length, exact):
                for key in BOTH:
                    self.client.xtrim(key, maxlen=length, approximate=not exact)
            case Delete(place):
                entries = self.client.xrange(PLAIN, count=place + 1)
                for key in BOTH:
                    if entries:
                        self.client.xdel(key, entries[-1][0])


@given(steps, beginnings, nodes)
def test_streams_are_equal(server: Server, steps: list[Any], position: int, node: tuple[int, int]) -> None:
    """Batches, native entries, trims and deletions in any order, with nodes of any size."""
    start_over(server)
    server.client.config_set("stream-node-max-entries", node[0])
    server.client.config_set("stream-node-max-bytes", node[1])
    streams = Streams(server, position)
    for step in steps:
        streams.apply(step)
        plain, added = dumps(server, BOTH)
        assert plain == added, step


def outcomes(server: Server, batch: bytes, timestamps: bool) -> tuple[bool, bool]:
    """Whether a batch is accepted by the kernel, and by the module. Both streams get it."""
    try:
        add_plainly(server, PLAIN, CLOCK, batch, timestamps=timestamps)
        by_kernel = True
    except BatchError:
        by_kernel = False
    reply = add(server, ADDED, CLOCK, batch, timestamps=timestamps)
    return by_kernel, not is_malformed(reply)


def is_malformed(reply: Any) -> bool:
    """Whether KORVET.ADD found the batch malformed; there is no other error."""
    if not isinstance(reply, redis.ResponseError):
        return False
    assert str(reply).startswith("KORVET.ADD: malformed batch"), reply
    return True


@given(st.lists(records_of, min_size=1, max_size=6), timestamps_ms, producers, st.booleans())
def test_extreme_timestamps_are_equal(
    server: Server, records: list[Record], base_ms: int, producer: Any, timestamps: bool
) -> None:
    start_over(server)
    deltas = [record.timestamp_ms - base_ms for record in records]
    if any(not MIN_INT64 <= delta <= MAX_INT64 for delta in deltas):
        records = [record._replace(timestamp_ms=base_ms) for record in records]
    by_kernel, by_module = outcomes(server, batch_of(records, producer, base_ms), timestamps)
    assert by_kernel
    assert by_module
    assert len(set(dumps(server, BOTH))) == 1


odd_bytes = st.sampled_from([0, 1, 2, 127, 128, 254, 255]) | st.integers(0, 255)


@given(
    st.lists(ordinary_records, min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 10_000), odd_bytes), min_size=1, max_size=3),
    st.integers(-3, 3),
    st.booleans(),
)
@settings(max_examples=300)
def test_damaged_records_are_refused_as_by_the_kernel(
    server: Server, records: list[Record], damage: list[tuple[int, int]], size: int, timestamps: bool
) -> None:
    start_over(server)
    section = bytearray(records_bytes(records, BASE_MS))
    for place, byte in damage:
        section[place % len(section)] = byte
    section = section[:size] if size < 0 else section + bytes(size)
    by_kernel, by_module = outcomes(server, batch_bytes(bytes(section), len(records)), timestamps)
    assert by_kernel == by_module
    assert len(set(dumps(server, BOTH))) == 1


@given(st.lists(records_of, min_size=1, max_size=3), st.lists(st.tuples(st.integers(), odd_bytes)))
def test_any_damage_is_answered(server: Server, records: list[Record], damage: list[tuple[int, int]]) -> None:
    """Also in the header, with a CRC that doesn't match."""
    batch = bytearray(batch_of([record._replace(timestamp_ms=BASE_MS) for record in records], None))
    for place, byte in damage:
        batch[place % len(batch)] = byte
    before = dumps(server, BOTH)
    for cut in (len(batch), abs(sum(place for place, _ in damage)) % len(batch)):
        if is_malformed(add(server, ADDED, CLOCK, bytes(batch[:cut]))):
            assert dumps(server, BOTH) == before
        else:
            start_over(server)
            before = dumps(server, BOTH)


def test_large_batches_are_equal(server: Server) -> None:
    """More records than a ms has sequences, and values that fill a node of the stream."""
    rng = random.Random(1)
    for key in BOTH:
        server.client.xgroup_create(key, "g")
    many = [Record(None, rng.randbytes(rng.randrange(120)), BASE_MS + i // 100) for i in range(5000)]
    large = [Record(b"k" * 10, rng.randbytes(rng.choice([10, 4096, 300_000])), BASE_MS) for _ in range(30)]
    position = CLOCK + 1000
    for records in (many, large):
        batch = whole_batch(records)
        add_plainly(server, PLAIN, position, batch)
        add(server, ADDED, position, batch)
        position += len(records)
    assert server.client.xlen(ADDED) == len(many) + len(large) + 1
    assert len(set(dumps(server, BOTH))) == 1


def section_of(body: bytes) -> bytes:
    """A record with these bytes after its length."""
    return varint(len(body)) + body


def with_header(at: int, value: bytes) -> bytes:
    batch = bytearray(whole_batch([Record(b"k", b"v", BASE_MS)]))
    batch[at : at + len(value)] = value
    return bytes(batch)


START = b"\0\0\0"
ONE = whole_batch([Record(b"k", b"v", BASE_MS)])
WIDE = Record(None, None, BASE_MS, ((b"", None),) * 1949)
MALFORMED = {
    "nothing": (b"", "it is shorter than a header"),
    "half a header": (ONE[:60], "it is shorter than a header"),
    "cut off": (ONE[:-1], "its length is not that of the argument"),
    "bytes after the batch": (ONE + b"\0", "its length is not that of the argument"),
    "negative length": (with_header(8, b"\xff" * 4), "its length is not that of the argument"),
    "magic 1": (with_header(16, b"\x01"), "its magic is not 2"),
    "zstd": (with_header(22, b"\x04"), "it is compressed"),
    "control batch": (with_header(22, b"\x30"), "it is a control batch"),
    "no records": (with_header(57, bytes(4)), "its record count is not positive"),
    "negative count": (with_header(57, b"\xff" * 4), "its record count is not positive"),
    "too many records": (with_header(57, struct.pack(">i", 2)), "or more than its bytes can hold"),
    "last offset delta": (with_header(23, struct.pack(">i", 1)), "its last offset delta"),
    "record length": (batch_bytes(varint(100) + bytes(8), 1), "record 0: its length"),
    "record of no bytes": (batch_bytes(varint(0) + bytes(8), 1), "record 0: its length"),
    "timestamp delta": (batch_bytes(section_of(b"\0" + b"\xff" * 10), 1), "record 0: its timestamp delta"),
    "length of 33 bits": (batch_bytes(b"\x80\x80\x80\x80\x10" + bytes(8), 1), "record 0: its length"),
    "offset delta of 33 bits": (
        batch_bytes(section_of(b"\0\0\x80\x80\x80\x80\x10" + bytes(8)), 1),
        "record 0: its offset delta",
    ),
    "timestamp delta of 65 bits": (
        batch_bytes(section_of(b"\0" + b"\x80" * 9 + b"\x02" + nullable(None) * 2 + bytes(2)), 1),
        "record 0: its timestamp delta",
    ),
    "timestamp beyond int64": (
        batch_bytes(records_bytes([Record(b"k", b"v", BASE_MS + 1)], BASE_MS), 1, base_ms=MAX_INT64),
        "record 0: its timestamp is no int64",
    ),
    "offset delta": (batch_bytes(section_of(b"\0\0\x02" + bytes(8)), 1), "record 0: its offset delta"),
    "key": (batch_bytes(section_of(START + varint(-2) + bytes(8)), 1), "record 0: its key length"),
    "value": (
        batch_bytes(section_of(START + nullable(b"") + varint(99) + bytes(8)), 1),
        "record 0: its value length",
    ),
    "header count": (
        batch_bytes(section_of(START + nullable(None) * 2 + varint(3) + bytes(5)), 1),
        "record 0: its header count",
    ),
    "header name": (
        batch_bytes(section_of(START + nullable(None) * 2 + varint(1) + varint(-1) + bytes(5)), 1),
        "record 0: it has a header without a name",
    ),
    "header value": (
        batch_bytes(section_of(START + nullable(None) * 2 + varint(1) + nullable(b"n") + varint(9)), 1),
        "record 0: it has a header value",
    ),
    "bytes after the headers": (
        batch_bytes(section_of(START + nullable(None) * 2 + varint(0) + b"\0"), 1),
        "record 0: bytes follow its last header",
    ),
    "bytes after the records": (batch_bytes(ONE[61:] + b"\0", 1), "bytes follow its last record"),
    "second record": (batch_bytes(ONE[61:] + b"\0" * 9, 2), "record 1: its length"),
    "too many headers": (whole_batch([WIDE, WIDE._replace(key=b"")]), "record 1: its headers are more"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_batch_is_refused(server: Server, name: str) -> None:
    batch, message = MALFORMED[name]
    before = dumps(server, BOTH)
    reply = add(server, ADDED, CLOCK, batch)
    assert is_malformed(reply)
    assert message in str(reply)
    assert dumps(server, BOTH) == before


def test_as_many_headers_as_an_entry_can_take_are_accepted(server: Server) -> None:
    batch = whole_batch([WIDE])
    add_plainly(server, PLAIN, CLOCK, batch)
    add(server, ADDED, CLOCK, batch)
    assert len(set(dumps(server, BOTH))) == 1


ARGUMENTS = {
    "ID with a sequence above 1023": ((b"5-1024", 1, None, ONE), "malformed entry ID"),
    "ID of a time above 2^53": ((b"9007199254740992-0", 1, None, ONE), "malformed entry ID"),
    "ID +": ((b"+", 1, None, ONE), "malformed entry ID"),
    "ID *": ((b"*", 1, None, ONE), "malformed entry ID"),
    "ID of letters": ((b"a-b", 1, None, ONE), "malformed entry ID"),
    "timestamps 2": ((b"5-0", 2, None, ONE), "timestamps is neither 0 nor 1"),
    "timestamps yes": ((b"5-0", "yes", None, ONE), "timestamps is neither 0 nor 1"),
    "replicas none": ((b"5-0", 1, "", ONE), "malformed version"),
    "replicas beyond 64 bits": ((b"5-0", 1, "9" * 20, ONE), "malformed version"),
    "no batch": ((b"5-0", 1, None), "wrong number of arguments"),
    "two batches": ((b"5-0", 1, None, ONE, ONE), "wrong number of arguments"),
    "last record beyond the last ID": (
        (entry_id(MAX_OFFSET).encode(), 1, None, whole_batch([Record(b"k", b"v", BASE_MS)] * 2)),
        "the last record has no entry ID",
    ),
    "ID of an entry": ((b"0-1", 1, None, ONE), "REFUSED the entry ID is not above the last one"),
    "ID 0-0": ((b"0-0", 1, None, ONE), "REFUSED the entry ID is not above the last one"),
    "another replica set": ((b"5-0", 1, -1, ONE), "REFUSED the replica set has changed"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_checked(server: Server, name: str) -> None:
    (first, timestamps, replicas, *batches), message = ARGUMENTS[name]
    version = replicas_version(server) if replicas is None else replicas
    before = dumps(server, BOTH)
    with pytest.raises(redis.ResponseError) as refused:
        server.client.execute_command("KORVET.ADD", ADDED, first, timestamps, version, *batches)
    assert message in str(refused.value)
    assert dumps(server, BOTH) == before


def test_the_last_entry_id_of_all_is_reached(server: Server) -> None:
    assert add(server, ADDED, MAX_OFFSET, ONE) == entry_id(MAX_OFFSET).encode()


def test_nothing_is_added_without_a_stream(server: Server) -> None:
    assert "REFUSED there is no such stream" in str(add(server, "missing", CLOCK, ONE))
    assert not server.client.exists("missing")
    server.client.set("text", "x")
    assert str(add(server, "text", CLOCK, ONE)).startswith("WRONGTYPE ")
    assert server.client.getdel("text") == b"x"


def test_full_memory_is_reported(server: Server) -> None:
    before = dumps(server, BOTH)
    server.client.config_set("maxmemory", 1)
    try:
        assert isinstance(add(server, ADDED, CLOCK, ONE), redis.exceptions.OutOfMemoryError)
        assert dumps(server, BOTH) == before
    finally:
        server.client.config_set("maxmemory", 0)


def test_a_transaction_can_mix_both_ways(server: Server) -> None:
    """As through the gate: a refused batch does not end the transaction."""
    version = replicas_version(server)
    with server.client.pipeline(transaction=True) as both:
        both.rename(ADDED, "gate")
        both.execute_command("KORVET.ADD", "gate", entry_id(CLOCK), 1, version, ONE)
        both.xadd("gate", {"value": "x"}, id=entry_id(CLOCK + 1))
        both.execute_command("KORVET.ADD", "gate", entry_id(CLOCK), 1, version, ONE)
        both.execute_command("KORVET.ADD", "gate", entry_id(CLOCK + 2), 1, version, ONE)
        both.rename("gate", ADDED)
        replies = both.execute(raise_on_error=False)
    assert isinstance(replies[3], redis.ResponseError)
    assert [ms_id for ms_id, _ in server.client.xrange(ADDED)][1:] == [
        entry_id(CLOCK + place).encode() for place in range(3)
    ]


def test_only_an_append_is_a_change_for_watching_clients(server: Server) -> None:
    for position, changed in ((1, False), (CLOCK, True)):
        with server.client.pipeline() as watching:
            watching.watch(ADDED)
            assert isinstance(add(server, ADDED, position, ONE), redis.ResponseError) != changed
            watching.multi()
            watching.ping()
            if changed:
                with pytest.raises(redis.WatchError):
                    watching.execute()
            else:
                watching.execute()


def test_nothing_is_leaked(server: Server) -> None:
    """Appends, batches that are refused at a late record, and refused appends."""
    records = [Record(b"key", b"value", BASE_MS, ((b"name", b"value"),))] * 4
    good = whole_batch(records)
    bad = batch_bytes(records_bytes(records) + b"\0" * 9, len(records) + 1)
    one_round = b"".join(
        add_command(server, ADDED, position, batch)
        for position, batch in ((CLOCK, good), (CLOCK + 10, bad), (CLOCK, good))
    )

    def used_bytes() -> int:
        for _ in range(1000):
            added, *refused = send(server, one_round, 3)
            assert isinstance(added, bytes)
            assert all(isinstance(reply, redis.ResponseError) for reply in refused)
            start_over(server)
        return int(server.client.info("memory")["used_memory"])

    used = [used_bytes() for _ in range(6)]
    # A string that every append leaves behind would take 32,000 bytes each time.
    assert min(after - before for before, after in itertools.pairwise(used)) < 20_000


def test_users_need_a_permission(server: Server) -> None:
    version = replicas_version(server)
    server.client.acl_setuser("writer", enabled=True, nopass=True, keys="*", commands=["+korvet.add"])
    client = redis.Redis(unix_socket_path=str(server.socket), username="writer", password="")
    try:
        assert client.execute_command("KORVET.ADD", ADDED, entry_id(CLOCK), 1, version, ONE)
        server.client.acl_setuser("writer", commands=["-korvet.add"], enabled=True)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("KORVET.ADD", ADDED, entry_id(CLOCK + 1), 1, version, ONE)
    finally:
        client.close()
        server.client.acl_deluser("writer")


def test_versions_are_equal(server: Server) -> None:
    """What the broker expects, the source, and the module as built."""
    source = re.search(r"^#define MODULE_VERSION (\d+)$", SOURCE.read_text(), re.MULTILINE)
    assert source is not None
    assert int(source[1]) == VERSION
    assert server.client.execute_command("KORVET.REPLICAS")[0] == VERSION
    assert [module[b"ver"] for module in server.client.module_list() if module[b"name"] == b"korvet"] == [
        VERSION
    ]


def test_xadds_of_a_batch_are_what_the_kernel_writes() -> None:
    """The other side of the comparisons."""
    resp, count = xadds("s", 1, ONE)
    assert count == 1
    assert resp.startswith(
        b"*10\r\n$4\r\nXADD\r\n$1\r\ns\r\n$10\r\nNOMKSTREAM\r\n$3\r\n0-1\r\n$3\r\nkey\r\n$1\r\nk\r\n"
    )

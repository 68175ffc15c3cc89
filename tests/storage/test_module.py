"""KORVET.PUT, also by korvet_append, beside XADDs: the streams are equal byte for byte, on replicas too."""

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
from korvet.redis import module
from korvet.redis.functions import library_source
from korvet.redis.module import VERSION
from tests.storage.module_streams import (
    UNPACK,
    add_plainly,
    append_command,
    dumps,
    keys_of,
    put,
    put_command,
    send,
    spans_of,
    xadds,
)
from tests.support.module import UNBUILT, module_built
from tests.support.ports import free_port
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
# Two streams with the same contents: one gets XADDs, the other KORVET.PUT.
PLAIN, ADDED = "plain", "added"
BOTH = (PLAIN, ADDED)


@pytest.fixture(scope="session", params=server_programs(), ids=lambda path: Path(path).name)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the module, for the tests of this file alone."""
    if not module_built():
        pytest.skip(UNBUILT)
    running = Server(
        request.param,
        tmp_path_factory.mktemp("redis"),
        *("--port", str(free_port()), "--repl-diskless-sync-delay", "0"),
        module=True,
    )
    running.client.function_load(library_source())
    yield running
    running.stop()


@pytest.fixture(scope="session")
def replicas(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """A replica with the module, and one without."""
    running = [
        Server(server.program, tmp_path_factory.mktemp("replica"), module=module) for module in (True, False)
    ]
    for replica in running:
        replica.follow(int(server.client.config_get("port")["port"]))
    yield running
    for replica in running:
        replica.stop()


def assert_equal(server: Server, replicas: list[Server]) -> None:
    """Both streams are equal, and those of the replicas."""
    plain, added = dumps(server, BOTH)
    assert plain == added
    assert server.client.wait(len(replicas), 20_000) == len(replicas)
    for replica in replicas:
        assert dumps(replica, BOTH) == [plain, plain]


@pytest.fixture(autouse=True)
def _empty(server: Server) -> None:
    start_over(server)


def start_over(server: Server) -> None:
    """Two equal streams, which have an entry each."""
    server.client.delete(*BOTH, *keys_of(ADDED)[1:])
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
                reply = put(self.server, ADDED, self.position, batch, timestamps=timestamps)
                assert reply == spans_of(self.server, PLAIN, self.position, records, timestamps=timestamps)
                self.position += len(records) - 1
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
def test_streams_are_equal(
    server: Server, replicas: list[Server], steps: list[Any], position: int, node: tuple[int, int]
) -> None:
    """Batches, native entries, trims and deletions in any order, with nodes of any size."""
    start_over(server)
    for each in (server, *replicas):
        each.client.config_set("stream-node-max-entries", node[0])
        each.client.config_set("stream-node-max-bytes", node[1])
    streams = Streams(server, position)
    for step in steps:
        streams.apply(step)
        assert len(set(dumps(server, BOTH))) == 1, step
    assert_equal(server, replicas)


def outcomes(server: Server, batch: bytes, timestamps: bool) -> tuple[bool, bool]:
    """Whether a batch is accepted by the kernel, and by the module. Both streams get it."""
    try:
        add_plainly(server, PLAIN, CLOCK, batch, timestamps=timestamps)
        by_kernel = True
    except BatchError:
        by_kernel = False
    reply = put(server, ADDED, CLOCK, batch, timestamps=timestamps)
    return by_kernel, not is_malformed(reply)


def is_malformed(reply: Any) -> bool:
    """Whether KORVET.PUT found the batch malformed; there is no other error."""
    if not isinstance(reply, redis.ResponseError):
        return False
    assert str(reply).startswith("malformed batch"), reply
    return True


@given(st.lists(records_of, min_size=1, max_size=6), timestamps_ms, producers, st.booleans())
def test_extreme_timestamps_are_equal(
    server: Server,
    replicas: list[Server],
    records: list[Record],
    base_ms: int,
    producer: Any,
    timestamps: bool,
) -> None:
    """Lua cannot read all of them."""
    start_over(server)
    deltas = [record.timestamp_ms - base_ms for record in records]
    if any(not MIN_INT64 <= delta <= MAX_INT64 for delta in deltas):
        records = [record._replace(timestamp_ms=base_ms) for record in records]
    by_kernel, by_module = outcomes(server, batch_of(records, producer, base_ms), timestamps)
    assert by_kernel
    assert by_module
    assert_equal(server, replicas)


odd_bytes = st.sampled_from([0, 1, 2, 127, 128, 254, 255]) | st.integers(0, 255)


@given(
    st.lists(ordinary_records, min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 10_000), odd_bytes), min_size=1, max_size=3),
    st.integers(-3, 3),
    st.booleans(),
)
@settings(max_examples=300)
def test_damaged_records_are_refused_as_by_the_kernel(
    server: Server,
    replicas: list[Server],
    records: list[Record],
    damage: list[tuple[int, int]],
    size: int,
    timestamps: bool,
) -> None:
    """Replicas read what is odd and accepted, as long varints."""
    start_over(server)
    section = bytearray(records_bytes(records, BASE_MS))
    for place, byte in damage:
        section[place % len(section)] = byte
    section = section[:size] if size < 0 else section + bytes(size)
    by_kernel, by_module = outcomes(server, batch_bytes(bytes(section), len(records)), timestamps)
    assert by_kernel == by_module
    assert_equal(server, replicas)


@given(st.lists(records_of, min_size=1, max_size=3), st.lists(st.tuples(st.integers(), odd_bytes)))
def test_any_damage_is_answered(server: Server, records: list[Record], damage: list[tuple[int, int]]) -> None:
    """Also in the header, with a CRC that doesn't match."""
    batch = bytearray(batch_of([record._replace(timestamp_ms=BASE_MS) for record in records], None))
    for place, byte in damage:
        batch[place % len(batch)] = byte
    before = dumps(server, BOTH)
    for cut in (len(batch), abs(sum(place for place, _ in damage)) % len(batch)):
        if is_malformed(put(server, ADDED, CLOCK, bytes(batch[:cut]))):
            assert dumps(server, BOTH) == before
        else:
            start_over(server)
            before = dumps(server, BOTH)


def test_large_batches_are_equal(server: Server, replicas: list[Server]) -> None:
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
        assert put(server, ADDED, position, batch) == spans_of(server, PLAIN, position, records)
        position += len(records)
    assert server.client.xlen(ADDED) == len(many) + len(large) + 1
    assert_equal(server, replicas)


def section_of(body: bytes) -> bytes:
    """A record with these bytes after its length."""
    return varint(len(body)) + body


def with_header(at: int, value: bytes) -> bytes:
    batch = bytearray(whole_batch([Record(b"k", b"v", BASE_MS)]))
    batch[at : at + len(value)] = value
    return bytes(batch)


START = b"\0\0\0"
RECORD = Record(b"k", b"v", BASE_MS)
ONE = whole_batch([RECORD])
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
    reply = put(server, ADDED, CLOCK, batch)
    assert is_malformed(reply)
    assert message in str(reply)
    assert dumps(server, BOTH) == before


def test_as_many_headers_as_an_entry_can_take_are_accepted(server: Server, replicas: list[Server]) -> None:
    batch = whole_batch([WIDE])
    add_plainly(server, PLAIN, CLOCK, batch)
    put(server, ADDED, CLOCK, batch)
    assert_equal(server, replicas)


ARGUMENTS = {
    "ID with a sequence above 1023": ((b"5-1024", 1, UNPACK, ONE), "malformed entry ID"),
    "ID of a time above 2^53": ((b"9007199254740992-0", 1, UNPACK, ONE), "malformed entry ID"),
    "ID +": ((b"+", 1, UNPACK, ONE), "malformed entry ID"),
    "ID *": ((b"*", 1, UNPACK, ONE), "malformed entry ID"),
    "ID of letters": ((b"a-b", 1, UNPACK, ONE), "malformed entry ID"),
    "timestamps 2": ((b"5-0", 2, UNPACK, ONE), "timestamps is neither 0 nor 1"),
    "timestamps yes": ((b"5-0", "yes", UNPACK, ONE), "timestamps is neither 0 nor 1"),
    "another function": ((b"5-0", 1, "korvet_append", ONE), "the function is not korvet_unpack"),
    "no function": ((b"5-0", 1, "", ONE), "the function is not korvet_unpack"),
    "no batch": ((b"5-0", 1, UNPACK), "wrong number of arguments"),
    "two batches": ((b"5-0", 1, UNPACK, ONE, ONE), "wrong number of arguments"),
    "last record beyond the last ID": (
        (entry_id(MAX_OFFSET).encode(), 1, UNPACK, whole_batch([Record(b"k", b"v", BASE_MS)] * 2)),
        "the last record has no entry ID",
    ),
    "ID of an entry": ((b"0-1", 1, UNPACK, ONE), "REFUSED the entry ID is not above the last one"),
    "ID 0-0": ((b"0-0", 1, UNPACK, ONE), "REFUSED the entry ID is not above the last one"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_checked(server: Server, name: str) -> None:
    arguments, message = ARGUMENTS[name]
    before = dumps(server, BOTH)
    with pytest.raises(redis.ResponseError) as refused:
        server.client.execute_command("KORVET.PUT", ADDED, *arguments)
    assert message in str(refused.value)
    assert dumps(server, BOTH) == before


def test_replicas_get_a_whole_entry_id(server: Server, replicas: list[Server]) -> None:
    add_plainly(server, PLAIN, CLOCK, ONE)
    server.client.execute_command("KORVET.PUT", ADDED, BASE_MS, 1, UNPACK, ONE)
    assert_equal(server, replicas)


def test_spans_sum_up_what_is_added(server: Server) -> None:
    rng = random.Random(2)
    position = CLOCK
    for count in (1, 255, 256, 257, 512, 513, *(rng.randrange(1, 1500) for _ in range(20))):
        records = [
            Record(
                rng.choice([None, b"", b"key"]),
                rng.choice([None, rng.randbytes(rng.randrange(200))]),
                rng.choice([BASE_MS, BASE_MS + rng.randrange(-(1 << 30), 1 << 30), -rng.randrange(1 << 50)]),
                rng.choice([(), ((b"name", b"value"), (b"", None))]),
            )
            for _ in range(count)
        ]
        for timestamps in (True, False):
            reply = put(server, ADDED, position, batch_of(records, None), timestamps=timestamps)
            assert reply == spans_of(server, ADDED, position, records, timestamps=timestamps)
            position += count


def test_the_last_entry_id_of_all_is_reached(server: Server, replicas: list[Server]) -> None:
    add_plainly(server, PLAIN, MAX_OFFSET, ONE)
    assert isinstance(put(server, ADDED, MAX_OFFSET, ONE), list)
    assert_equal(server, replicas)


def test_a_stream_is_created(server: Server, replicas: list[Server]) -> None:
    server.client.delete(*BOTH)
    add_plainly(server, PLAIN, CLOCK, ONE)
    assert isinstance(put(server, ADDED, CLOCK, ONE), list)
    assert_equal(server, replicas)


@pytest.mark.parametrize(("position", "batch"), [(CLOCK, ONE[:-1]), (0, ONE)], ids=["malformed", "ID 0-0"])
def test_no_stream_is_created_for_a_refused_batch(server: Server, position: int, batch: bytes) -> None:
    assert isinstance(put(server, "missing", position, batch), redis.ResponseError)
    assert not server.client.exists("missing")


def test_a_key_of_another_type_is_left_alone(server: Server) -> None:
    server.client.set("text", "x")
    assert str(put(server, "text", CLOCK, ONE)).startswith("WRONGTYPE ")
    assert server.client.getdel("text") == b"x"


def test_full_memory_is_reported(server: Server) -> None:
    before = dumps(server, BOTH)
    server.client.config_set("maxmemory", 1)
    try:
        assert isinstance(put(server, ADDED, CLOCK, ONE), redis.exceptions.OutOfMemoryError)
        assert dumps(server, BOTH) == before
    finally:
        server.client.config_set("maxmemory", 0)


def test_only_an_append_is_a_change_for_watching_clients(server: Server) -> None:
    for position, changed in ((1, False), (CLOCK, True)):
        with server.client.pipeline() as watching:
            watching.watch(ADDED)
            assert isinstance(put(server, ADDED, position, ONE), redis.ResponseError) != changed
            watching.multi()
            watching.ping()
            if changed:
                with pytest.raises(redis.WatchError):
                    watching.execute()
            else:
                watching.execute()


RECORDS = [Record(b"key", b"value", BASE_MS, ((b"name", b"value"),))] * 4
GOOD = whole_batch(RECORDS)
BAD = batch_bytes(records_bytes(RECORDS) + b"\0" * 9, len(RECORDS) + 1)


ROUNDS = {
    # Commands, and how many of them are refused.
    "KORVET.PUT": (
        [
            put_command(ADDED, CLOCK, GOOD),
            put_command(ADDED, CLOCK + 10, BAD),
            put_command(ADDED, CLOCK, GOOD),
        ],
        2,
    ),
    "korvet_append": (
        [
            append_command(ADDED, GOOD, GOOD, BAD),
            append_command(ADDED, GOOD, function="korvet_append_missing"),
            append_command(ADDED),
        ],
        2,
    ),
}


@pytest.mark.parametrize("commands", ROUNDS)
def test_nothing_is_leaked(server: Server, commands: str) -> None:
    """Appends, batches that are refused at a late record, and refused appends."""
    one_round, refused = ROUNDS[commands]

    def used_bytes() -> int:
        for _ in range(1000):
            added, *others = send(server, b"".join(one_round), len(one_round))
            assert isinstance(added, list)
            assert [isinstance(reply, redis.ResponseError) for reply in others] == [True] * refused
            start_over(server)
        memory = server.client.info("memory")
        return int(memory["used_memory"] - memory["mem_total_replication_buffers"])

    used = [used_bytes() for _ in range(6)]
    # A string that every append leaves behind would take 32,000 bytes each time.
    assert min(after - before for before, after in itertools.pairwise(used)) < 20_000


def test_users_need_a_permission(server: Server) -> None:
    server.client.acl_setuser("writer", enabled=True, nopass=True, keys="*", commands=["+korvet.put"])
    client = redis.Redis(unix_socket_path=str(server.socket), username="writer", password="")
    try:
        assert client.execute_command("KORVET.PUT", ADDED, entry_id(CLOCK), 1, UNPACK, ONE)
        server.client.acl_setuser("writer", commands=["-korvet.put"], enabled=True)
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("KORVET.PUT", ADDED, entry_id(CLOCK + 1), 1, UNPACK, ONE)
    finally:
        client.close()
        server.client.acl_deluser("writer")


def test_key_patterns_hold(server: Server) -> None:
    rules = {"enabled": True, "nopass": True, "commands": ["+korvet.put"]}
    server.client.acl_setuser("writer", keys=[f"{ADDED}*"], **rules)
    client = redis.Redis(unix_socket_path=str(server.socket), username="writer", password="")
    arguments = entry_id(CLOCK), 1, UNPACK, ONE
    try:
        assert client.execute_command("KORVET.PUT") == VERSION
        assert client.execute_command("KORVET.PUT", ADDED, *arguments) == spans_of(
            server, ADDED, CLOCK, [RECORD]
        )
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("KORVET.PUT", PLAIN, *arguments)
    finally:
        client.close()
        server.client.acl_deluser("writer")


def test_versions_are_equal(server: Server) -> None:
    """What the broker expects, the source, and the module as built."""
    source = re.search(r"^#define MODULE_VERSION (\d+)$", SOURCE.read_text(), re.MULTILINE)
    assert source is not None
    assert int(source[1]) == VERSION
    assert server.client.execute_command("KORVET.PUT") == VERSION
    assert [module[b"ver"] for module in server.client.module_list() if module[b"name"] == b"korvet"] == [
        VERSION
    ]


def test_all_batches_of_an_append_are_added(server: Server, replicas: list[Server]) -> None:
    batches = GOOD, ONE, GOOD
    positions = [2, 6, 7]
    for position, batch in zip(positions, batches, strict=True):
        add_plainly(server, PLAIN, position, batch)
    (reply,) = send(server, append_command(ADDED, *batches), 1)
    assert reply[6:] == [position - 1 for position in positions]
    assert_equal(server, replicas)


def test_a_refused_batch_of_an_append_refuses_those_after_it(server: Server, replicas: list[Server]) -> None:
    add_plainly(server, PLAIN, 2, GOOD)
    (reply,) = send(server, append_command(ADDED, GOOD, BAD, ONE), 1)
    base, *refused = reply[6:]
    assert base == 1
    assert [text.startswith(b"ERR malformed batch: ") for text in refused] == [True, True]
    assert_equal(server, replicas)


def test_a_script_that_fails_half_way(server: Server, replicas: list[Server]) -> None:
    """What it did is done, on replicas too."""
    add_plainly(server, PLAIN, CLOCK, ONE)
    script = "redis.call('KORVET.PUT', KEYS[1], ARGV[1], 1, ARGV[2], ARGV[3]) error('half done')"
    with pytest.raises(redis.ResponseError, match="half done"):
        server.client.eval(script, 1, ADDED, entry_id(CLOCK), UNPACK, ONE)
    assert_equal(server, replicas)


def test_an_append_is_refused_as_a_whole_while_memory_is_full(server: Server) -> None:
    before = dumps(server, BOTH)
    server.client.config_set("maxmemory", 1)
    try:
        (reply,) = send(server, append_command(ADDED, ONE, ONE), 1)
        assert isinstance(reply, redis.exceptions.OutOfMemoryError)
    finally:
        server.client.config_set("maxmemory", 0)
    assert dumps(server, BOTH) == before
    assert not server.client.exists(*keys_of(ADDED)[1:])


@pytest.mark.parametrize("place", range(3), ids=["stream", "index", "meta"])
def test_an_append_to_a_key_of_another_type_does_nothing(server: Server, place: int) -> None:
    keys = keys_of("typed")
    server.client.set(keys[place], "x")
    try:
        (reply,) = send(server, append_command("typed", ONE, GOOD), 1)
        assert isinstance(reply, redis.ResponseError)
        assert "WRONGTYPE" in str(reply)
        assert server.client.exists(*keys) == 1
        assert server.client.get(keys[place]) == b"x"
    finally:
        server.client.delete(*keys)


def test_a_transaction_can_append(server: Server, replicas: list[Server]) -> None:
    """An append that is refused does not end it."""
    for key in BOTH:
        server.client.xadd(key, {"value": "x"}, id=entry_id(CLOCK))
    for number in (1, 5):
        add_plainly(server, PLAIN, CLOCK + number, ONE)
    with server.client.pipeline(transaction=True) as both:
        for number in (1, 1, 5):
            both.execute_command("KORVET.PUT", ADDED, entry_id(CLOCK + number), 1, UNPACK, ONE)
            both.execute_command("KORVET.PUT", ADDED, entry_id(CLOCK + number), 2, UNPACK, ONE)
        first, again, last = (replies := both.execute(raise_on_error=False))[::2]
    assert first == last == spans_of(server, PLAIN, CLOCK + 1, [RECORD])
    assert "REFUSED the entry ID is not above the last one of the stream" in str(again)
    assert all("timestamps is neither 0 nor 1" in str(reply) for reply in replies[1::2])
    assert_equal(server, replicas)


@pytest.mark.parametrize(
    "command", [put_command(ADDED, CLOCK, ONE), append_command(ADDED, ONE)], ids=["put", "append"]
)
def test_a_replica_takes_no_append(replicas: list[Server], command: bytes) -> None:
    before = dumps(replicas[0], BOTH)
    (reply,) = send(replicas[0], command, 1)
    assert isinstance(reply, redis.exceptions.ReadOnlyError)
    assert dumps(replicas[0], BOTH) == before


def test_lost_functions_are_named_and_nothing_is_done(server: Server) -> None:
    """The broker loads them again."""
    server.client.function_flush()
    try:
        before = dumps(server, BOTH)
        (reply,) = send(server, append_command(ADDED, ONE, GOOD), 1)
        assert str(reply) == "Function not found"
        assert dumps(server, BOTH) == before
        assert not server.client.exists(*keys_of(ADDED)[1:])
    finally:
        server.client.function_load(library_source(), replace=True)


def test_xadds_of_a_batch() -> None:
    """The other side of the comparisons."""
    (command,) = xadds("s", 1, ONE)
    assert command.startswith(b"*9\r\n$4\r\nXADD\r\n$1\r\ns\r\n$3\r\n0-1\r\n$3\r\nkey\r\n$1\r\nk\r\n")

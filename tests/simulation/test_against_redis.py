"""The simulated server answers like a real one: commands of whole runs, and random commands."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustness.simulation.redis import group_commands, plain, stream_commands
from robustness.simulation.redis.registry import COMMANDS
from robustness.simulation.redis.values import Database, Fault
from robustness.simulation.replay import Real, comparable
from robustness.simulation.tape import plain as plain_reply
from tests.support.redis_server import Server, server_programs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.each_server

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(0, 12)
MANY_SEEDS = range(0, 400)


@pytest.fixture(scope="module", params=server_programs(), ids=lambda path: Path(path).name)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    server = Server(request.param, tmp_path_factory.mktemp("redis"), module=False)
    with Real(server.socket) as connection:
        yield connection
    server.stop()


# Redis 7.0 differs in details, for example when XCLAIM makes a consumer.
on_the_newest = pytest.mark.parametrize("real", server_programs()[:1], indirect=True, ids=["valkey"])


@functools.cache
def tape_of(seeds: range) -> bytes:
    command = [sys.executable, "-m", "robustness.simulation.tape", *map(str, seeds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:].decode()
    return done.stdout


def replay(real: Real, seeds: range) -> None:
    assert real.replay(tape_of(seeds)) > 100 * len(seeds)


def test_commands_of_whole_runs_get_the_same_replies(real: Real) -> None:
    replay(real, SEEDS)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_commands_of_many_runs_get_the_same_replies(real: Real) -> None:
    for first in MANY_SEEDS[::40]:
        replay(real, range(first, first + 40))


REGISTERED = (group_commands, plain, stream_commands)
KEYS = st.sampled_from((b"k", b"l", b"m"))
WORDS = st.sampled_from((b"a", b"b", b"c", b"d"))
SCORES = st.sampled_from((b"0", b"1", b"2.5", b"-3", b"9007199254740993"))
BOUNDS = st.sampled_from((b"-inf", b"+inf", b"0", b"(1", b"2.5", b"(2.5"))
NUMBERS = st.sampled_from((b"0", b"1", b"2", b"-1", b"-2", b"5"))
IDS = st.sampled_from((b"1-0", b"1-1", b"2-0", b"3-7", b"4", b"9-0", b"20-0"))
ENDS = st.one_of(IDS, st.sampled_from((b"-", b"+", b"(2-0", b"(1-1")))
GROUPS = st.sampled_from((b"g", b"h"))


def call(*parts: bytes | st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    """A command whose parts are fixed or drawn."""
    return st.tuples(*(st.just(part) if isinstance(part, bytes) else part for part in parts)).map(list)


CALLS = st.one_of(
    call(b"SET", KEYS, WORDS),
    call(b"GET", KEYS),
    call(b"INCR", KEYS),
    call(b"DEL", KEYS),
    call(b"UNLINK", KEYS, KEYS),
    call(b"EXISTS", KEYS, KEYS),
    call(b"TYPE", KEYS),
    call(b"RENAME", KEYS, KEYS),
    call(b"RENAMENX", KEYS, KEYS),
    call(b"HSET", KEYS, WORDS, NUMBERS),
    call(b"HSETNX", KEYS, WORDS, NUMBERS),
    call(b"HGET", KEYS, WORDS),
    call(b"HMGET", KEYS, WORDS, WORDS),
    call(b"HGETALL", KEYS),
    call(b"HDEL", KEYS, WORDS, WORDS),
    call(b"HEXISTS", KEYS, WORDS),
    call(b"HLEN", KEYS),
    call(b"HINCRBY", KEYS, WORDS, NUMBERS),
    call(b"RPUSH", KEYS, WORDS, WORDS),
    call(b"LPOP", KEYS),
    call(b"LPOP", KEYS, st.sampled_from((b"1", b"2"))),
    call(b"LLEN", KEYS),
    call(b"SADD", KEYS, WORDS),
    call(b"SCARD", KEYS),
    call(b"ZADD", KEYS, SCORES, WORDS),
    call(b"ZADD", KEYS, SCORES, WORDS, SCORES, WORDS),
    call(b"ZCARD", KEYS),
    call(b"ZSCORE", KEYS, WORDS),
    call(b"ZRANK", KEYS, WORDS),
    call(b"ZREM", KEYS, WORDS),
    call(b"ZRANGE", KEYS, NUMBERS, NUMBERS),
    call(b"ZREVRANGE", KEYS, NUMBERS, NUMBERS, b"WITHSCORES"),
    call(b"ZRANGEBYSCORE", KEYS, BOUNDS, BOUNDS),
    call(b"ZREVRANGEBYSCORE", KEYS, BOUNDS, BOUNDS, b"WITHSCORES", b"LIMIT", st.just(b"0"), NUMBERS),
    call(b"ZREMRANGEBYRANK", KEYS, NUMBERS, NUMBERS),
    call(b"ZREMRANGEBYSCORE", KEYS, BOUNDS, BOUNDS),
)
STREAM_CALLS = st.one_of(
    call(b"XADD", KEYS, IDS, WORDS, WORDS),
    call(b"XADD", KEYS, b"NOMKSTREAM", IDS, WORDS, WORDS),
    call(b"XLEN", KEYS),
    call(b"XRANGE", KEYS, ENDS, ENDS),
    call(b"XREVRANGE", KEYS, ENDS, ENDS, b"COUNT", st.sampled_from((b"1", b"2"))),
    call(b"XREAD", b"COUNT", st.sampled_from((b"1", b"2")), b"STREAMS", KEYS, IDS),
    call(b"XDEL", KEYS, IDS, IDS),
    call(b"XTRIM", KEYS, b"MAXLEN", st.sampled_from((b"0", b"1", b"2"))),
    call(b"XTRIM", KEYS, b"MINID", IDS),
    call(b"XSETID", KEYS, IDS),
    call(b"XSETID", KEYS, IDS, b"ENTRIESADDED", NUMBERS, b"MAXDELETEDID", IDS),
    call(b"XINFO", b"STREAM", KEYS),
    call(b"XINFO", b"GROUPS", KEYS),
    call(b"XINFO", b"CONSUMERS", KEYS, GROUPS),
    call(b"XGROUP", b"CREATE", KEYS, GROUPS, IDS),
    call(b"XGROUP", b"CREATE", KEYS, GROUPS, b"$", b"MKSTREAM"),
    call(b"XGROUP", b"CREATE", KEYS, GROUPS, b"0", b"ENTRIESREAD", st.sampled_from((b"0", b"1", b"2"))),
    call(b"XGROUP", b"SETID", KEYS, GROUPS, IDS),
    call(b"XGROUP", b"SETID", KEYS, GROUPS, IDS, b"ENTRIESREAD", st.sampled_from((b"0", b"1", b"2"))),
    call(b"XGROUP", b"DESTROY", KEYS, GROUPS),
    call(b"XGROUP", b"CREATECONSUMER", KEYS, GROUPS, WORDS),
    call(b"XGROUP", b"DELCONSUMER", KEYS, GROUPS, WORDS),
    call(
        b"XREADGROUP",
        b"GROUP",
        GROUPS,
        WORDS,
        b"COUNT",
        st.sampled_from((b"1", b"2")),
        b"STREAMS",
        KEYS,
        b">",
    ),
    call(b"XREADGROUP", b"GROUP", GROUPS, WORDS, b"NOACK", b"STREAMS", KEYS, b">"),
    call(b"XACK", KEYS, GROUPS, IDS),
    call(b"XPENDING", KEYS, GROUPS),
    call(b"XPENDING", KEYS, GROUPS, ENDS, ENDS, st.sampled_from((b"1", b"5"))),
    call(b"XPENDING", KEYS, GROUPS, b"IDLE", st.sampled_from((b"0", b"99999999")), ENDS, ENDS, b"5"),
    call(b"XCLAIM", KEYS, GROUPS, WORDS, b"0", IDS, IDS, b"JUSTID"),
    call(b"XCLAIM", KEYS, GROUPS, WORDS, b"0", IDS, b"TIME", b"0", b"RETRYCOUNT", b"3", b"FORCE", b"JUSTID"),
    call(b"XCLAIM", KEYS, GROUPS, WORDS, b"0", IDS, b"LASTID", IDS),
    call(b"DEL", KEYS),
    call(b"RENAME", KEYS, KEYS),
)


def simulated(db: Database, args: list[bytes]) -> Any:
    """The simulated server's reply."""
    db.set_time(1_700_000_000_000_000)
    try:
        return plain_reply(COMMANDS[args[0]].run(db, args[1:]))
    except Fault as fault:
        return plain_reply(fault)


def compare(real: Real, commands: list[list[bytes]]) -> None:
    db = Database()
    answers = real.ask([b"FLUSHALL"], *commands)[1:]
    for args, answered in zip(commands, answers, strict=True):
        reply = simulated(db, args)
        assert comparable(args, reply) == comparable(args, answered), (args, reply, answered)


@on_the_newest
@given(commands=st.lists(CALLS, min_size=5, max_size=40))
def test_random_commands_get_the_same_replies(real: Real, commands: list[list[bytes]]) -> None:
    compare(real, commands)


@on_the_newest
@given(commands=st.lists(STREAM_CALLS, min_size=5, max_size=40))
def test_random_commands_on_streams_get_the_same_replies(real: Real, commands: list[list[bytes]]) -> None:
    compare(real, commands)

"""Commands on keys, strings, hashes, lists, sets and sorted sets."""

from __future__ import annotations

import fnmatch
from collections import deque
from typing import TYPE_CHECKING, Any

from robustness.simulation.redis.registry import command
from robustness.simulation.redis.streams import Stream
from robustness.simulation.redis.values import (
    OK,
    SYNTAX_ERROR,
    Fault,
    Score,
    SortedSet,
    Status,
    integer_of,
    text_of_score,
)

if TYPE_CHECKING:
    from robustness.simulation.redis.values import Database

Args = list[bytes]
_TYPES = {bytes: b"string", dict: b"hash", deque: b"list", set: b"set", SortedSet: b"zset", Stream: b"stream"}


@command("PING", least=0)
def ping(_: Database, args: Args) -> Any:
    return args[0] if args else Status(b"PONG")


@command("TIME", least=0)
def time(db: Database, _: Args) -> Any:
    return [b"%d" % (db.now_us // 1_000_000), b"%d" % (db.now_us % 1_000_000)]


@command("EXISTS", least=1)
def exists(db: Database, args: Args) -> int:
    return sum(db.any(key) is not None for key in args)


@command("TYPE", least=1)
def type_(db: Database, args: Args) -> Status:
    found = db.any(args[0])
    return Status(b"none" if found is None else _TYPES[type(found)])


@command("DEL", "UNLINK", least=1, writes=True)
def delete(db: Database, args: Args) -> int:
    return sum(db.delete(key) for key in args)


@command("RENAME", least=2, writes=True)
def rename(db: Database, args: Args) -> Status:
    db.rename(*args)
    return OK


@command("RENAMENX", least=2, writes=True)
def rename_if_new(db: Database, args: Args) -> int:
    if db.any(args[0]) is None:
        raise Fault("ERR no such key")
    if db.any(args[1]) is not None:
        return 0
    db.rename(*args)
    return 1


@command("PEXPIRE", least=2, writes=True)
def expire(db: Database, args: Args) -> int:
    if db.any(args[0]) is None:
        return 0
    db.expiries[args[0]] = db.now_ms + integer_of(args[1])
    return 1


@command("FLUSHALL", "FLUSHDB", least=0, writes=True)
def flush(db: Database, _: Args) -> Status:
    for key in db:
        db.delete(key)
    return OK


@command("GET", least=1)
def get(db: Database, args: Args) -> bytes | None:
    return db.get(args[0], bytes)


@command("SET", least=2, writes=True)
def set_(db: Database, args: Args) -> Status:
    db.expiries.pop(args[0], None)
    for at in range(2, len(args), 2):
        unit_ms = {b"PX": 1, b"EX": 1000}.get(args[at].upper())
        if unit_ms is None or at + 1 == len(args):
            raise Fault(SYNTAX_ERROR)
        db.expiries[args[0]] = db.now_ms + integer_of(args[at + 1]) * unit_ms
    db.put(args[0], args[1])
    return OK


@command("INCR", least=1, writes=True)
def increment(db: Database, args: Args) -> int:
    number = integer_of(db.get(args[0], bytes) or b"0") + 1
    db.put(args[0], b"%d" % number)
    return number


# Hashes


@command("HGET", least=2)
def hash_get(db: Database, args: Args) -> bytes | None:
    found = db.get(args[0], dict)
    return found.get(args[1]) if found else None


@command("HMGET", least=2)
def hash_get_some(db: Database, args: Args) -> list[bytes | None]:
    found = db.get(args[0], dict) or {}
    return [found.get(field) for field in args[1:]]


@command("HGETALL", least=1)
def hash_get_all(db: Database, args: Args) -> list[bytes]:
    found = db.get(args[0], dict) or {}
    return [part for pair in found.items() for part in pair]


@command("HEXISTS", least=2)
def hash_exists(db: Database, args: Args) -> int:
    return int(args[1] in (db.get(args[0], dict) or {}))


@command("HLEN", least=1)
def hash_length(db: Database, args: Args) -> int:
    return len(db.get(args[0], dict) or {})


@command("HSET", least=3, writes=True)
def hash_set(db: Database, args: Args) -> int:
    if len(args) % 2 == 0:
        raise Fault("ERR wrong number of arguments for 'hset' command")
    found = db.obtain(args[0], dict)
    before = len(found)
    found.update(zip(args[1::2], args[2::2], strict=True))
    return len(found) - before


@command("HSETNX", least=3, writes=True)
def hash_set_if_new(db: Database, args: Args) -> int:
    found = db.obtain(args[0], dict)
    if args[1] in found:
        return 0
    found[args[1]] = args[2]
    return 1


@command("HDEL", least=2, writes=True)
def hash_delete(db: Database, args: Args) -> int:
    found = db.get(args[0], dict)
    if not found:
        return 0
    count = sum(found.pop(field, None) is not None for field in args[1:])
    db.drop_if_empty(args[0], found)
    return count


@command("HINCRBY", least=3, writes=True)
def hash_increment(db: Database, args: Args) -> int:
    found = db.obtain(args[0], dict)
    number = integer_of(found.get(args[1], b"0")) + integer_of(args[2])
    found[args[1]] = b"%d" % number
    return number


@command("HSCAN", least=2)
def hash_scan(db: Database, args: Args) -> list[Any]:
    """All fields in one page."""
    found = db.get(args[0], dict) or {}
    options = {args[at].upper(): args[at + 1] for at in range(2, len(args), 2)}
    pattern = options.get(b"MATCH", b"*").decode("latin-1")
    matching = (pair for pair in found.items() if fnmatch.fnmatchcase(pair[0].decode("latin-1"), pattern))
    return [b"0", [part for pair in matching for part in pair]]


# Lists and sets


@command("RPUSH", least=2, writes=True)
def push(db: Database, args: Args) -> int:
    found: deque[bytes] = db.obtain(args[0], deque)
    found.extend(args[1:])
    return len(found)


@command("LPOP", least=1, writes=True)
def pop(db: Database, args: Args) -> Any:
    found: deque[bytes] | None = db.get(args[0], deque)
    if not found:
        return None
    if len(args) == 1:
        taken: Any = found.popleft()
    else:
        taken = [found.popleft() for _ in range(min(integer_of(args[1]), len(found)))]
    db.drop_if_empty(args[0], found)
    return taken


@command("LLEN", least=1)
def list_length(db: Database, args: Args) -> int:
    return len(db.get(args[0], deque) or ())


@command("SADD", least=2, writes=True)
def set_add(db: Database, args: Args) -> int:
    found: set[bytes] = db.obtain(args[0], set)
    before = len(found)
    found.update(args[1:])
    return len(found) - before


@command("SCARD", least=1)
def set_size(db: Database, args: Args) -> int:
    return len(db.get(args[0], set) or ())


@command("SPOP", least=2, writes=True)
def set_pop(db: Database, args: Args) -> list[bytes]:
    """The smallest members; Redis takes random ones."""
    found: set[bytes] | None = db.get(args[0], set)
    if not found:
        return []
    taken = sorted(found)[: integer_of(args[1])]
    found.difference_update(taken)
    db.drop_if_empty(args[0], found)
    return taken


# Sorted sets


@command("ZADD", least=3, writes=True)
def sorted_add(db: Database, args: Args) -> int:
    if len(args) % 2 == 0:
        raise Fault(SYNTAX_ERROR)
    try:
        scores = [float(score) for score in args[1::2]]
    except ValueError:
        raise Fault("ERR value is not a valid float") from None
    found = db.obtain(args[0], SortedSet)
    return sum([found.add(member, score) for score, member in zip(scores, args[2::2], strict=True)])


@command("ZCARD", least=1)
def sorted_size(db: Database, args: Args) -> int:
    return len(db.get(args[0], SortedSet) or ())


@command("ZSCORE", least=2)
def sorted_score(db: Database, args: Args) -> bytes | None:
    found = db.get(args[0], SortedSet)
    score = found.scores.get(args[1]) if found else None
    return None if score is None else text_of_score(score)


@command("ZRANK", least=2)
def sorted_rank(db: Database, args: Args) -> int | None:
    found = db.get(args[0], SortedSet)
    return found.rank(args[1]) if found else None


@command("ZRANGE", least=3)
def sorted_range(db: Database, args: Args) -> list[bytes]:
    found = db.get(args[0], SortedSet)
    first, last = integer_of(args[1]), integer_of(args[2])
    return _shown(found.by_rank(first, last) if found else [], args[3:])


@command("ZREVRANGE", least=3)
def sorted_reverse_range(db: Database, args: Args) -> list[bytes]:
    found = db.get(args[0], SortedSet)
    first, last = integer_of(args[1]), integer_of(args[2])
    backwards = found.by_rank(0, -1)[::-1] if found else []
    count = len(backwards)
    first = max(first + count, 0) if first < 0 else first
    last = last + count if last < 0 else last
    return _shown(backwards[first : last + 1] if last >= first else [], args[3:])


@command("ZRANGEBYSCORE", least=3)
def sorted_range_by_score(db: Database, args: Args) -> list[bytes]:
    found = db.get(args[0], SortedSet) or SortedSet()
    return _shown(found.by_score(args[1], args[2]), args[3:])


@command("ZREVRANGEBYSCORE", least=3)
def sorted_reverse_range_by_score(db: Database, args: Args) -> list[bytes]:
    found = db.get(args[0], SortedSet) or SortedSet()
    return _shown(found.by_score(args[2], args[1])[::-1], args[3:])


@command("ZREM", least=2, writes=True)
def sorted_remove(db: Database, args: Args) -> int:
    found = db.get(args[0], SortedSet)
    return 0 if found is None else _removed(db, args[0], found, args[1:])


@command("ZREMRANGEBYRANK", least=3, writes=True)
def sorted_remove_ranks(db: Database, args: Args) -> int:
    found = db.get(args[0], SortedSet)
    if found is None:
        return 0
    entries = found.by_rank(integer_of(args[1]), integer_of(args[2]))
    return _removed(db, args[0], found, [member for _, member in entries])


@command("ZREMRANGEBYSCORE", least=3, writes=True)
def sorted_remove_scores(db: Database, args: Args) -> int:
    found = db.get(args[0], SortedSet)
    if found is None:
        return 0
    return _removed(db, args[0], found, [member for _, member in found.by_score(args[1], args[2])])


def _removed(db: Database, key: bytes, found: SortedSet, members: list[bytes]) -> int:
    count = sum([found.remove(member) for member in members])
    db.drop_if_empty(key, found)
    return count


def _shown(entries: list[tuple[Score, bytes]], options: Args) -> list[bytes]:
    """Entries as a reply, with WITHSCORES and LIMIT."""
    with_scores, at = False, 0
    while at < len(options):
        name = options[at].upper()
        if name == b"WITHSCORES":
            with_scores, at = True, at + 1
        elif name == b"LIMIT" and at + 2 < len(options):
            start, count = integer_of(options[at + 1]), integer_of(options[at + 2])
            entries, at = entries[start:][: None if count < 0 else count], at + 3
        else:
            raise Fault(SYNTAX_ERROR)
    if not with_scores:
        return [member for _, member in entries]
    return [part for score, member in entries for part in (member, text_of_score(score))]

"""Servers with data, and what they hold in a form that is the same in every kind and version of server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from korvet.cli.app import korvet

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER, TOPICS, BROKERS, RESTORING = (
    "{korvet}:cluster",
    "{korvet}:topics",
    "{korvet}:brokers",
    "{korvet}:restoring",
)
STREAM = "korvet:orders:0"
# Entries of the stream that `fill` writes.
ENTRIES = 3000
LIBRARY = "#!lua name=own\nredis.register_function('own_answer', function() return 42 end)"


def run(command: str, *arguments: object) -> Result:
    """Run a command of korvet in this process."""
    return CliRunner(env={}).invoke(korvet, [command, *map(str, arguments)])


def failure(command: str, *arguments: object) -> str:
    """The message of a command that fails as a user's error does: one line, status 1."""
    done = run(command, *arguments)
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.output.startswith("Error: ")
    return done.output


def success(command: str, *arguments: object) -> str:
    done = run(command, *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def fill(client: Any, entries: int = ENTRIES) -> None:
    """Write a keyspace with a stream, groups, pending entries, and values of every other type."""
    client.hset(CLUSTER, mapping={"id": "the-id", "format": 3, "assignment": 4})
    client.hset(CLUSTER, mapping={"next_producer_id": 9_000_000_000_000_000, "catalogue": 5, "security": 6})
    client.hset(BROKERS, "1", "a lease")
    client.hset(TOPICS, mapping={f"t{number}": "x" * 50 for number in range(200)})
    with client.pipeline(transaction=False) as pipeline:
        for number in range(entries):
            pipeline.xadd(STREAM, {"key": b"k%d" % number, "value": b"\r\n$3\r\n" * 9}, id=f"{number + 1}-3")
        pipeline.xdel(STREAM, "5-3", f"{entries}-3")
        pipeline.xgroup_create(STREAM, "readers", id="0")
        pipeline.xreadgroup("readers", "me", {STREAM: ">"}, count=20)
        pipeline.xgroup_createconsumer(STREAM, "readers", "idle")
        pipeline.xadd("korvet:empty:0", {"a": "b"}, id="77-7")
        pipeline.xtrim("korvet:empty:0", maxlen=0)
        pipeline.zadd("{korvet:orders:0}:index", {"one": 1.5, "two": 2})
        pipeline.set("text", b"\x00\r\n")
        pipeline.set("lasting", "for a while", px=100_000_000)
        pipeline.rpush("list", *range(500))
        pipeline.sadd("set", *range(500))
        pipeline.execute()
    client.function_load(LIBRARY, replace=True)


def contents(client: Any) -> dict[Any, Any]:
    """Everything in one database. Expiry is rounded, and idle times are left out."""
    found: dict[Any, Any] = {key: _value(client, key) for key in client.scan_iter()}
    found["functions"] = sorted(str(library) for library in client.function_list())
    return found


def without_numbers(found: dict[Any, Any]) -> dict[Any, Any]:
    """The contents except what a restore changes."""
    kept = {key: value for key, value in found.items() if key != BROKERS.encode()}
    raised = (b"assignment", b"next_producer_id", b"catalogue", b"security", b"first_producer_id")
    cluster, _ = kept[CLUSTER.encode()]
    return kept | {CLUSTER.encode(): {key: value for key, value in cluster.items() if key not in raised}}


def _value(client: Any, key: bytes) -> Any:
    expires = client.pexpiretime(key)
    kind = client.type(key)
    if kind == b"stream":
        return client.xrange(key), _stream(client, key)
    read = {
        b"hash": lambda: client.hgetall(key),
        b"zset": lambda: client.zrange(key, 0, -1, withscores=True),
        b"list": lambda: client.lrange(key, 0, -1),
        b"set": lambda: client.smembers(key),
        b"string": lambda: client.get(key),
    }
    return read[kind](), expires


def _stream(client: Any, key: bytes) -> Any:
    about = client.xinfo_stream(key)
    state = [about[name] for name in ("length", "last-generated-id", "max-deleted-entry-id", "entries-added")]
    groups = [
        (
            *(group[name] for name in ("name", "last-delivered-id", "entries-read", "pending")),
            sorted((each["name"], each["pending"]) for each in client.xinfo_consumers(key, group["name"])),
            [
                (each["message_id"], each["consumer"], each["times_delivered"])
                for each in client.xpending_range(key, group["name"], "-", "+", 1000)
            ],
        )
        for group in client.xinfo_groups(key)
    ]
    return state, groups


def damage(path: Path, at: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0x20
    path.write_bytes(content)

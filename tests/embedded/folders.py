"""Data folders that a server with korvet's server module has written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from click.testing import CliRunner, Result

from korvet.cli.app import korvet
from korvet.embedded import append_only
from korvet.embedded.server import EmbeddedServer
from tests.api.batches import batch

DEADLINE_S = 60.0
RECORDS = 8


@contextmanager
def running(data_dir: Path, **options: Any) -> Iterator[tuple[EmbeddedServer, "redis.Redis"]]:
    server = EmbeddedServer(data_dir, **options)
    client = redis.Redis.from_url(server.start())
    try:
        yield server, client
    finally:
        client.close()
        server.stop()


def pairs(first: int, count: int = RECORDS) -> list[tuple[bytes, bytes]]:
    return [(b"key-%d" % number, b"value-%d " % number * 5) for number in range(first, first + count)]


def add(client: "redis.Redis", stream: str, first: int, count: int = RECORDS) -> None:
    """Append records with KORVET.PUT, at the IDs `first`-0, `first`-1 and so on. There are no replicas, so no
    function is called.
    """
    client.execute_command(*put_command(stream, first, count))


def put_command(stream: str, first: int, count: int = RECORDS) -> tuple[str | int | bytes, ...]:
    records = batch(pairs(first, count), timestamp_ms=first)
    return "KORVET.PUT", stream, f"{first}-0", 0, "korvet_unpack", records


def add_plainly(client: "redis.Redis", stream: str, first: int, count: int = RECORDS) -> None:
    """Append the same entries with XADD."""
    for sequence, (key, value) in enumerate(pairs(first, count)):
        client.xadd(stream, {"key": key, "value": value}, id=f"{first}-{sequence}")


def begin(client: "redis.Redis", stream: str) -> None:
    """Create a stream with an entry of a native client."""
    client.xadd(stream, {"value": "first"}, id="0-1")


def fill(client: "redis.Redis") -> None:
    """Write what a broker writes: appends with and without the module, each one unit with a hash; groups."""
    for stream in ("orders", "plain"):
        begin(client, stream)
        client.xgroup_create(stream, "readers", id="0")
    for first in range(1, 41):
        with client.pipeline(transaction=True) as transaction:
            transaction.hset("meta", "end", first)
            transaction.execute_command(*put_command("orders", first))
            transaction.hset("meta", "size", first * RECORDS)
            transaction.execute()
        add_plainly(client, "plain", first)
    for stream in ("orders", "plain"):
        client.xgroup_setid(stream, "readers", "20-3")


def dumps(client: "redis.Redis") -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in sorted(client.scan_iter())}


def filled(data_dir: Path) -> dict[bytes, bytes]:
    """Fill a folder with the module. Returns the DUMP of each key."""
    with running(data_dir) as (_, client):
        fill(client)
        return dumps(client)


def rewrite(data_dir: Path, *options: str) -> Result:
    return CliRunner().invoke(korvet, ["rewrite", "--data-dir", str(data_dir), *options])


def repair(data_dir: Path, *options: str) -> Result:
    return CliRunner().invoke(korvet, ["repair", "--data-dir", str(data_dir), *options])


def is_plain(data_dir: Path) -> bool:
    """Whether no part of the append-only file holds KORVET.ADD."""
    parts = append_only.parts(data_dir)
    return not any(append_only.holds_command(part, b"KORVET.ADD", lambda _: None) for part in parts)


def broken_module(folder: Path) -> Path:
    path = folder / "broken.so"
    path.write_bytes(b"no program")
    path.chmod(0o755)
    return path


def last_part(data_dir: Path) -> Path:
    return append_only.parts(data_dir)[-1]

"""Memory of a record in Redis, by size, storage layout and compression, on a broker of its own.

Run it with `./dev run python -m benchmarks.sizing`. docs/guides/sizing.md has its figures. Records are JSON
documents of orders, with a key and a header. Memory is the growth of `used_memory`, indexes included.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Final

from tests.support.admin import create_topic
from tests.support.confluent import producer
from tests.support.servers import KorvetServer

_RECORDS: Final = {100: 200_000, 1_000: 40_000}
_CODECS: Final = ("none", "lz4", "zstd")
_CITIES: Final = ("Lisbon", "Oslo", "Vienna", "Madrid", "Prague", "Dublin", "Athens", "Warsaw")


def order(number: int, size: int, rng: random.Random) -> bytes:
    """A JSON document of exactly `size` bytes: an order with as many lines as fit."""
    document = {"id": number, "city": rng.choice(_CITIES), "price": rng.randint(100, 99_999), "lines": []}
    text = json.dumps(document)
    while len(text) < size:
        line = {
            "sku": f"{rng.getrandbits(32):08x}",
            "count": rng.randint(1, 20),
            "cents": rng.randint(1, 9_999),
        }
        document["lines"].append(line)  # type: ignore[union-attr]
        text = json.dumps(document)
    return text.encode()[:size]


def bytes_per_record(server: KorvetServer, size: int, layout: str, codec: str) -> float:
    """Produce to a new topic. Returns the memory that each record took."""
    topic, count, rng = f"{layout}-{codec}-{size}", _RECORDS[size], random.Random(1)
    create_topic(server.bootstrap, topic, 1, {"storage.layout": layout})
    client = producer(
        server.bootstrap,
        compression_type=codec,
        linger_ms=20,
        batch_size=65_536,
        queue_buffering_max_messages=10_000,
    )
    before = int(server.redis.info("memory")["used_memory"])
    for number in range(count):
        while True:
            try:
                client.produce(
                    topic, order(number, size, rng), f"{number:016d}", headers={"trace": b"t" * 14}
                )
                break
            except BufferError:
                client.poll(0.1)
        client.poll(0)
    assert client.flush(60) == 0
    return (int(server.redis.info("memory")["used_memory"]) - before) / count


def main() -> None:
    """Measure all combinations, and print one row for each."""
    server = KorvetServer().start()
    try:
        sys.stdout.write("value  layout  codec  bytes of memory per record\n")
        for size in _RECORDS:
            for layout in ("record", "batch"):
                # Records of the layout `record` are stored uncompressed.
                for codec in _CODECS if layout == "batch" else ("none",):
                    found = bytes_per_record(server, size, layout, codec)
                    sys.stdout.write(f"{size:5}  {layout:6}  {codec:5}  {found:.0f}\n")
    finally:
        server.stop()
        server.discard()


if __name__ == "__main__":
    main()

"""A worker as a process: takes records, works for a moment, and accepts them, until SIGTERM.

python -m robustness.queue.worker kafka|redis ADDRESS TOPIC GROUP LOCK_MS JOURNAL
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, ShareConsumer
from redis import Redis

from korvet.offsets.packing import pack
from robustness.load.worker import LIBRDKAFKA
from robustness.queue.journal import ACCEPTED, TAKEN, Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT_ONCE: Final = 100
"""Records that a worker takes at once."""
WORK_S: Final = 0.02
"""How long a worker has records before it accepts them, so that most kills find it with some."""
# How long a worker waits for records.
_WAIT_S: Final = 0.5
# A worker looks for records of others whose locks have ended if there are no new ones, and every so often.
_LOOK_EVERY: Final = 20


def take_by_kafka(
    address: str, topic: str, group: str, journal: Journal, is_over: Callable[[], bool]
) -> None:
    """Take as a member of the share group."""
    names = {"bootstrap.servers": address, "group.id": group, "share.acknowledgement.mode": "explicit"}
    client = ShareConsumer(LIBRDKAFKA | names | {"max.poll.records": AT_ONCE})
    client.subscribe([topic])
    while not is_over():
        found = [message for message in client.poll(_WAIT_S) if message.error() is None]
        if not found:
            continue
        offsets = [message.offset() for message in found]
        journal.note(TAKEN, offsets)
        time.sleep(WORK_S)
        for message in found:
            client.acknowledge(message)
        try:
            errors = client.commit_sync(30)
        except KafkaException:
            continue
        if not any(errors.values()):
            journal.note(ACCEPTED, offsets)
    client.close()


def take_by_redis(
    address: str, stream: str, group: str, lock_ms: int, journal: Journal, is_over: Callable[[], bool]
) -> None:
    """Take as a consumer of the Redis group: XREADGROUP, XAUTOCLAIM, XACK."""
    client: Any = Redis.from_url(address, decode_responses=True)
    name = f"native-{os.getpid()}"

    def expired() -> Iterator[list[str]]:
        """Pages of what nobody has, or had for too long."""
        cursor = "0-0"
        while True:
            cursor, entries, *_ = client.xautoclaim(stream, group, name, lock_ms, cursor, AT_ONCE)
            yield [entry_id for entry_id, _ in entries]
            if cursor == "0-0":
                return

    def accept(entry_ids: list[str]) -> None:
        offsets = [pack(*map(int, entry_id.split("-"))) for entry_id in entry_ids]
        journal.note(TAKEN, offsets)
        time.sleep(WORK_S)
        with client.pipeline(transaction=False) as pipeline:
            for entry_id in entry_ids:
                pipeline.xack(stream, group, entry_id)
            counts = pipeline.execute()
        journal.note(ACCEPTED, (each for each, count in zip(offsets, counts, strict=True) if count))

    rounds = 0
    while not is_over():
        reply = client.xreadgroup(group, name, {stream: ">"}, AT_ONCE, int(_WAIT_S * 1000))
        rounds += 1
        if reply:
            accept([entry_id for entry_id, _ in reply[0][1]])
        if not reply or rounds % _LOOK_EVERY == 0:
            for page in expired():
                if page:
                    accept(page)


def main(kind: str, address: str, topic: str, group: str, lock_ms: str, path: str) -> None:
    """Work until SIGTERM."""
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    journal = Journal(Path(path))
    if kind == "kafka":
        take_by_kafka(address, topic, group, journal, lambda: bool(ended))
    else:
        take_by_redis(address, f"korvet:{topic}:0", group, int(lock_ms), journal, lambda: bool(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])

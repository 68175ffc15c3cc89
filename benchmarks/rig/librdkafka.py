"""One run of a librdkafka client with default settings, as a process that prints its counts.

python -m benchmarks.rig.librdkafka produce|consume BOOTSTRAP TOPIC RECORDS VALUE_BYTES
python -m benchmarks.rig.librdkafka share BOOTSTRAP TOPIC RECORDS GROUP
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import sys
import time

from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition

from benchmarks.rig.records import HEADER, KEY_BYTES

# librdkafka's default (1,000) stops reads of small records for a second whenever its queue is full, on any
# broker.
FETCH_QUEUE_BACKOFF_MS = 20
DEADLINE_S = 60.0
# Number of different records, which are sent in turn.
DISTINCT = 1_000


def produce(bootstrap: str, topic: str, count: int, value_bytes: int) -> float:
    """Produce this number of records. Returns the seconds until the last acknowledgement."""
    failures: list[object] = []

    def reported(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)

    values = [os.urandom(value_bytes) for _ in range(DISTINCT)]
    keys = [secrets.token_hex(KEY_BYTES // 2) for _ in range(DISTINCT)]
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.list_topics(topic, timeout=10)
    began = time.perf_counter()
    for number in range(count):
        index = number % DISTINCT
        while True:
            try:
                producer.produce(topic, values[index], keys[index], headers=[HEADER], on_delivery=reported)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1_000 == 0:
            producer.poll(0)
    left = producer.flush(DEADLINE_S)
    took_s = time.perf_counter() - began
    if left or failures:
        sys.exit(f"{left} records not sent, {len(failures)} refused: {failures[:1]}")
    return took_s


def consume(bootstrap: str, topic: str, count: int) -> float:
    """Read this number of records of partition 0.

    Returns the seconds from the first poll to the last record.
    """
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench-librdkafka",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": FETCH_QUEUE_BACKOFF_MS,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    began = time.perf_counter()
    read = 0
    while read < count:
        if time.perf_counter() - began > DEADLINE_S:
            sys.exit(f"{read} of {count} records within {DEADLINE_S:g} s")
        for message in consumer.consume(min(1_000, count - read), 1.0):
            if message.error() is not None:
                sys.exit(str(message.error()))
            read += 1
    took_s = time.perf_counter() - began
    consumer.close()
    return took_s


def share(bootstrap: str, topic: str, count: int, group: str) -> float:
    """Take and accept this number of records as the only member of a share group.

    Returns the seconds from the first record to the acceptance of the last one.
    """
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    began = first_s = time.perf_counter()
    taken = 0
    while taken < count:
        if time.perf_counter() - began > DEADLINE_S:
            sys.exit(f"{taken} of {count} records within {DEADLINE_S:g} s")
        messages = consumer.poll(1.0)
        for message in messages:
            if message.error() is not None:
                sys.exit(str(message.error()))
        if not taken:
            first_s = time.perf_counter()
        taken += len(messages)
    consumer.commit_sync()
    took_s = time.perf_counter() - first_s
    consumer.close()
    return took_s


def main(what: str, bootstrap: str, topic: str, count: str, extra: str) -> None:
    """Run, and print the counts in the format of the C clients."""
    if what == "share":
        took_s = share(bootstrap, topic, int(count), extra)
    elif what == "produce":
        took_s = produce(bootstrap, topic, int(count), int(extra))
    else:
        took_s = consume(bootstrap, topic, int(count))
    used = resource.getrusage(resource.RUSAGE_SELF)
    counts = {"records": int(count), "seconds": took_s, "cpu_s": used.ru_utime + used.ru_stime}
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

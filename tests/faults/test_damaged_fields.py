"""Damaged fields in the hashes that brokers share, written while a broker serves: everything else
continues.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet as korvet_command
from tests.storage.test_shared_fields import MALFORMED
from tests.support.admin import create_topic
from tests.support.confluent import producer, read_all, send
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "orders"
WAIT_S = 20
RECORDS = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(3)]


def count_changes(server: KorvetServer) -> None:
    """Wait until brokers have read the hashes again."""
    server.redis.hincrby("{korvet}:cluster", "catalogue", 1)
    server.redis.hincrby("{korvet}:cluster", "security", 1)


def catalogue_is_followed(server: KorvetServer, number: int) -> None:
    """The membership works: a topic that another broker would have created is known."""
    name = f"later-{number}"
    stored = json.loads(server.redis.hget("{korvet}:topics", TOPIC))
    stored |= {"name": name, "topic_id": f"00000000-0000-0000-0000-{number + 1:012d}"}
    server.redis.hset("{korvet}:topics", name, json.dumps(stored))
    count_changes(server)
    client = producer(server.bootstrap)
    until(lambda: name in client.list_topics(timeout=5).topics, WAIT_S, f"the broker knows {name}")


def test_a_broker_goes_on_with_damaged_fields_in_every_hash(own_korvet: Callable[..., KorvetServer]) -> None:
    # The hashes are read four times in this period.
    server = own_korvet("--set", "broker.session.timeout.ms=1600")
    create_topic(server.bootstrap, TOPIC, 1)
    for number, (name, field, value) in enumerate(MALFORMED):
        server.redis.hset(f"{{korvet}}:{name}", field, value)
        count_changes(server)
        catalogue_is_followed(server, number)
    send(producer(server.bootstrap), TOPIC, 0, RECORDS)
    assert [each.record.value for each in read_all(server.bootstrap, TOPIC)] == [b"0", b"1", b"2"]
    assert "membership failed" not in server.tail(1_000_000)

    done = CliRunner(env={}).invoke(korvet_command, ["doctor", "--data-dir", str(server.data_dir), "--json"])
    faults = [each["subject"] for each in json.loads(done.output) if each["state"] == "fault"]
    named = {subject.split()[0] for subject in faults}
    assert named == {f"{{korvet}}:{name}" for name, _, _ in MALFORMED} - {"{korvet}:brokers"}

    assert server.stop() == 0
    server.restart()
    assert [each.record.value for each in read_all(server.bootstrap, TOPIC)] == [b"0", b"1", b"2"]


def test_a_bad_config_of_one_topic_keeps_no_other_from_its_retention(
    own_korvet: Callable[..., KorvetServer],
) -> None:
    server = own_korvet("--set", "log.retention.check.interval.ms=200")
    # Retention goes by topic name.
    create_topic(server.bootstrap, "a-bad-one", 1)
    create_topic(server.bootstrap, TOPIC, 1)
    stored = json.loads(server.redis.hget("{korvet}:topics", "a-bad-one"))
    stored["configs"] = {"retention.ms": "x", "min.cleanable.dirty.ratio": "y"}
    server.redis.hset("{korvet}:topics", "a-bad-one", msgspec.json.encode(stored))
    count_changes(server)
    until(lambda: "is skipped: Invalid value x" in server.tail(100_000), WAIT_S, "the log names the config")
    send(producer(server.bootstrap), TOPIC, 0, RECORDS)
    stream = f"korvet:{TOPIC}:0"
    assert server.redis.xlen(stream) == len(RECORDS)
    kept = json.loads(server.redis.hget("{korvet}:topics", TOPIC))
    kept["configs"] = {"retention.ms": "1"}
    server.redis.hset("{korvet}:topics", TOPIC, msgspec.json.encode(kept))
    count_changes(server)
    until(lambda: server.redis.xlen(stream) == 0, WAIT_S, "old records of the other topic are deleted")

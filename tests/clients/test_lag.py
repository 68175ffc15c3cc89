"""`korvet groups`: lag in records and time, compared with numbers counted by hand."""

from __future__ import annotations

import json
import re
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from korvet.cli.app import korvet as korvet_command
from korvet.cli.doctor import check_transactions, streams_of
from korvet.cli.lag import Commit, Lag, measure
from korvet.cli.redis_address import RedisSource
from korvet.offsets.packing import entry_id, offset_of
from korvet.redis.errors import WrongType
from tests.support.confluent import consumer, producer, send, take
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.clients

# Create times of five records, not in order: time lag uses the first unread record, not the oldest one.
AGES_MS = (905_000, 500_000, 800_000, 300_000, 400_000)
TIMES_MS = [NOW_MS - age_ms for age_ms in AGES_MS]


def records(now_ms: int = NOW_MS) -> list[Record]:
    return [Record(None, b"%d" % number, (), now_ms - age_ms) for number, age_ms in enumerate(AGES_MS)]


def run(*arguments: str) -> Result:
    """Run the command in this process, without the environment's settings."""
    unset = dict.fromkeys(("KORVET_REDIS", "KORVET_DATA_DIR", "KORVET_KEYSPACE"))
    done = CliRunner(env=unset).invoke(korvet_command, ["groups", *arguments])
    assert done.exit_code == 0, done.output
    return done


def at(korvet: KorvetServer, *options: str) -> list[str]:
    return ["-b", korvet.bootstrap, "--data-dir", str(korvet.data_dir), *options]


def describe(korvet: KorvetServer, group: str) -> dict[str, Any]:
    done = run("describe", group, *at(korvet, "--json"))
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def listed(korvet: KorvetServer, group: str) -> dict[str, Any]:
    """The row of a group in the list of all."""
    (found,) = (row for row in json.loads(run("list", *at(korvet, "--json")).stdout) if row["group"] == group)
    return found


def commit(korvet: KorvetServer, group: str, topic: str, *offsets: int) -> None:
    """Commit the first offset for partition 0, the next for partition 1 and so on."""
    client = consumer(korvet.bootstrap, group)
    places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    client.commit(offsets=places, asynchronous=False)
    client.close()


def stream(topic: str, partition: int = 0) -> str:
    return f"korvet:{topic}:{partition}"


def check(
    korvet: KorvetServer, group: str, unread: int, first_ms: int | None, status: str | None = None
) -> None:
    """Check one partition's lag. `first_ms` is the timestamp of the first unread record. Without a status,
    that of a commit within the log.
    """
    before_ms = time.time_ns() // 1_000_000
    (row,) = describe(korvet, group)["offsets"]
    after_ms = time.time_ns() // 1_000_000
    assert row["record_lag"] == unread
    assert row["status"] == (status or (None if unread else "ok"))
    if first_ms is None:
        assert row["lag_ms"] == 0
    else:
        assert before_ms - first_ms <= row["lag_ms"] <= after_ms - first_ms


def test_lag_counts_records_over_gaps_and_native_entries(korvet, topic, fresh):
    offsets = send(producer(korvet.bootstrap), topic, 0, records())
    native = [korvet.redis.xadd(stream(topic), {"celsius": str(n)}).decode() for n in range(3)]
    korvet.redis.xdel(stream(topic), entry_id(offsets[2]), native[1])
    native_ms = [int(found.partition("-")[0]) for found in native]
    # Left: records 0, 1, 3, 4 and native 0, 2.
    cases = [
        (0, 6, TIMES_MS[0]),
        (offsets[0], 6, TIMES_MS[0]),
        (offsets[0] + 1, 5, TIMES_MS[1]),
        (offsets[2], 4, TIMES_MS[3]),
        (offsets[4], 3, TIMES_MS[4]),
        (offsets[4] + 1, 2, native_ms[0]),
        (offset_of(native[1]), 1, native_ms[2]),
        (offset_of(native[2]) + 1, 0, None),
        (offset_of(native[2]) + 1_024_000, 0, None),
    ]
    for offset, unread, first_ms in cases:
        group = fresh("group")
        commit(korvet, group, topic, offset)
        check(korvet, group, unread, first_ms, "ahead" if offset > offset_of(native[2]) + 1 else None)


def test_lag_after_the_start_of_the_log_was_trimmed(korvet, topic, group):
    offsets = send(producer(korvet.bootstrap), topic, 0, records())
    commit(korvet, group, topic, offsets[1])
    korvet.redis.xtrim(stream(topic), maxlen=1, approximate=False)
    check(korvet, group, 1, TIMES_MS[4])
    korvet.redis.xtrim(stream(topic), maxlen=0, approximate=False)
    check(korvet, group, 0, None)


def test_lag_on_a_topic_with_dense_offsets(korvet, new_topic, group):
    topic = new_topic(1, {"offset.assignment": "dense"})
    assert send(producer(korvet.bootstrap), topic, 0, records()) == [0, 1, 2, 3, 4]
    commit(korvet, group, topic, 1)
    check(korvet, group, 4, TIMES_MS[1])
    korvet.redis.xtrim(stream(topic), maxlen=2, approximate=False)
    check(korvet, group, 2, TIMES_MS[3], "lost")
    commit(korvet, group, topic, 9)
    check(korvet, group, 0, None, "ahead")


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_lag_within_batches(korvet, new_topic, fresh, assignment):
    topic = new_topic(1, {"storage.layout": "batch", "offset.assignment": assignment})
    # A flush ends the linger time: each call of `send` makes one batch, unless its records wait for metadata.
    client = producer(korvet.bootstrap, linger_ms=60_000)
    client.list_topics(topic, timeout=20)
    offsets = [*send(client, topic, 0, records()), *send(client, topic, 0, records())]
    assert korvet.redis.xlen(stream(topic)) == 2
    for place, offset in enumerate(offsets):
        group = fresh("group")
        commit(korvet, group, topic, offset)
        check(korvet, group, 10 - place, TIMES_MS[place % 5])
    group = fresh("group")
    commit(korvet, group, topic, offsets[-1] + 1)
    check(korvet, group, 0, None)
    # What is left of the first batch shows that its deleted records were unread.
    admin = AdminClient({"bootstrap.servers": korvet.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, offsets[3])]).values():
        deleted.result(20)
    commit(korvet, group, topic, offsets[1])
    check(korvet, group, 7, TIMES_MS[3], "lost")


def test_the_doctor_counts_the_records_of_batches(own_korvet):
    server = own_korvet("--set", "log.storage.layout=batch")
    send(producer(server.bootstrap, linger_ms=50), "orders", 0, records() * 20)
    done = CliRunner(env={}).invoke(korvet_command, ["doctor", "--data-dir", str(server.data_dir), "--json"])
    (found,) = [each["text"] for each in json.loads(done.stdout) if each["subject"] == "entries"]
    entries = server.redis.xlen(stream("orders"))
    assert found == f"{entries} of 100 records in 1 streams, all with an offset"


def test_the_doctor_names_damaged_batches(own_korvet):
    server = own_korvet("--set", "log.storage.layout=batch")
    client = producer(server.bootstrap, linger_ms=50)
    send(client, "orders", 0, records())
    found_id, fields = server.redis.xrange(stream("orders"))[0]
    batch = bytearray(fields[b"batch"])
    batch[-1] ^= 1
    server.redis.xadd(stream("orders"), {"batch": "an application's"})
    next_id = f"{int(found_id.partition(b'-')[0]) + 1000}-4"
    server.redis.xadd(stream("orders"), {"batch": bytes(batch)}, id=next_id)
    done = CliRunner(env={}).invoke(korvet_command, ["doctor", "--data-dir", str(server.data_dir), "--json"])
    assert done.exit_code == 1
    (found,) = [each for each in json.loads(done.stdout) if each["subject"] == stream("orders")]
    entries = server.redis.xlen(stream("orders"))
    assert found["state"] == "fault"
    damage = "damaged record batches (wrong CRC, length or place)"
    where = f"{next_id}: topic orders, partition 0, offset {offset_of(next_id)}"
    assert found["text"] == f"1 of {entries} entries are {damage}, the first is {where}"


def test_damaged_notes_of_transactions_are_reported(own_korvet):
    port = free_port()
    server = own_korvet("--set", f"admin.listen=127.0.0.1:{port}")
    send(producer(server.bootstrap), "orders", 0, [Record(None, b"v", (), NOW_MS)])
    for damage in ({"open": b"x"}, {"open": struct.pack(">dd", 7, 1), "p:7": b"x"}):
        server.redis.hset("{" + stream("orders") + "}:meta", mapping=damage)
        found, none = check_transactions(streams_of([server.redis], "korvet"), NOW_MS)
        assert (found.subject, found.state) == (stream("orders"), "fault")
        assert f"the hash field {list(damage)[-1]!r} is damaged" in found.text
        assert none.text.startswith("0 open")
    reported = json.loads(Pages(port).read("/status").text)["findings"]
    assert found._asdict() in reported


def test_the_doctor_shows_who_holds_back_readers(own_korvet):
    server = own_korvet()
    send(producer(server.bootstrap), "orders", 0, [Record(None, b"before", (), NOW_MS)])
    log_end = offset_of(server.redis.xrange(stream("orders"))[0][0]) + 1
    client = producer(server.bootstrap, transactional_id="left")
    client.init_transactions(30)
    client.begin_transaction()
    client.produce("orders", b"in a transaction", partition=0)
    assert client.flush(20) == 0
    now_ms = time.time_ns() // 1_000_000
    (found,) = check_transactions(streams_of([server.redis], "korvet"), now_ms)
    assert found == ("transactions", "ok", "1 open, none idle for 15 min")
    (found,) = check_transactions(streams_of([server.redis], "korvet"), now_ms + 3_600_000)
    assert (found.subject, found.state) == (stream("orders"), "warning")
    assert re.fullmatch(
        rf"readers of committed records wait at offset {log_end}: producer \d+ has a transaction open, in "
        r"which it wrote last at \d{4}-\d\d-\d\d \d\d:\d\d UTC",
        found.text,
    )
    client.abort_transaction(30)
    until(lambda: server.redis.xlen(stream("orders")) == 3, 30, "the marker")
    (found,) = check_transactions(streams_of([server.redis], "korvet"), now_ms + 3_600_000)
    assert found.text == "0 open, none idle for 15 min"


def test_a_record_from_the_future_does_not_wait(korvet, topic, group):
    send(producer(korvet.bootstrap), topic, 0, [Record(None, b"v", (), NOW_MS + 3_000_000)])
    commit(korvet, group, topic, 0)
    (row,) = describe(korvet, group)["offsets"]
    assert (row["record_lag"], row["lag_ms"]) == (1, 0)


def test_totals_and_tables(korvet, new_topic, group):
    """Partition 0 is unread, partition 1 has one unread record, partition 2 is empty."""
    topic = new_topic(3)
    client = producer(korvet.bootstrap)
    # The tables show minutes, so these count from now, not from the start of the tests.
    now_ms = time.time_ns() // 1_000_000
    send(client, topic, 0, records(now_ms))
    offsets = send(client, topic, 1, records(now_ms))
    commit(korvet, group, topic, 0, offsets[4], 0)
    found = describe(korvet, group)
    assert [row["record_lag"] for row in found["offsets"]] == [5, 1, 0]
    assert found["record_lag"] == 6
    assert found["lag_ms"] == max(row["lag_ms"] for row in found["offsets"])
    of_list = listed(korvet, group)
    assert of_list["record_lag"] == 6
    assert of_list["lag_ms"] >= found["lag_ms"]
    (line,) = [line for line in run("list", *at(korvet)).stdout.splitlines() if line.startswith(group)]
    assert line.split()[-4:-2] == ["15", "min"]
    assert line.split()[-5] == "6"
    table = run("describe", group, *at(korvet)).stdout.splitlines()
    assert table[0].split() == [group, "Empty", "-"]
    assert [line.split()[4:8] for line in table[-3:]] == [
        ["-", "5", "15", "min"],
        ["-", "1", "6", "min"],
        ["ok", "0", "0"],
    ]


def test_a_group_without_commits_has_no_lag(korvet, topic, group):
    client = consumer(korvet.bootstrap, group, enable_auto_commit=False)
    client.subscribe([topic])
    until(lambda: client.poll(0.05) or client.assignment(), 20, "the member has its partition")
    found = describe(korvet, group)
    client.close()
    assert len(found["members"]) == 1
    assert (found["offsets"], found["record_lag"], found["lag_ms"]) == ([], None, None)


def test_a_group_is_not_ok_while_a_member_has_a_partition_without_a_commit(korvet, new_topic, group):
    topic = new_topic(2)
    client = consumer(korvet.bootstrap, group, enable_auto_commit=False)
    client.subscribe([topic])
    until(lambda: client.poll(0.05) or len(client.assignment()) == 2, 20, "the member has its partitions")
    for offsets, status in (([0], None), ([0, 0], "ok"), ([0, 7], "ahead")):
        places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
        client.commit(offsets=places, asynchronous=False)
        assert (describe(korvet, group)["status"], listed(korvet, group)["status"]) == (status, status)
    client.close()


def cluster_id(korvet: KorvetServer) -> str:
    found = korvet.redis.hget("{korvet}:cluster", "id")
    assert found is not None
    return found.decode()


def test_a_deleted_topic_leaves_nothing_unread(korvet, new_topic, group):
    gone, left = new_topic(), new_topic()
    client = producer(korvet.bootstrap)
    send(client, gone, 0, records())
    send(client, left, 0, records())
    commit(korvet, group, gone, 0)
    commit(korvet, group, left, 0)
    admin = AdminClient({"bootstrap.servers": korvet.bootstrap})
    admin.delete_topics([gone])[gone].result(20)
    found = describe(korvet, group)
    assert [(row["topic"], row["record_lag"]) for row in found["offsets"]] == [(left, 5)]
    # A commit may outlive its topic for a moment, or name a partition that never existed.
    commits = [Commit(gone, 0, 0), Commit(left, 1, 0), Commit(left, 0, -1)]
    source = RedisSource(None, korvet.data_dir, "korvet")
    lags = measure(source, cluster_id(korvet), commits, now_ms=TIMES_MS[0] + 7)
    assert lags == dict(zip(commits, [Lag(0, 0, "OK"), Lag(0, 0, "OK"), Lag(5, 7)], strict=True))


def test_one_spoilt_partition_leaves_the_others(korvet, new_topic, group):
    topic = new_topic(2)
    send(producer(korvet.bootstrap), topic, 1, records())
    commit(korvet, group, topic, 0, 0)
    korvet.redis.delete(stream(topic))
    korvet.redis.lpush(stream(topic), "not a stream")
    commits = [Commit(topic, 0, 0), Commit(topic, 1, 0)]
    lags = measure(RedisSource(None, korvet.data_dir, "korvet"), cluster_id(korvet), commits)
    korvet.redis.delete(stream(topic))
    assert isinstance(lags[commits[0]], WrongType)
    intact = lags[commits[1]]
    assert isinstance(intact, Lag)
    assert intact.records == 5


@pytest.mark.parametrize("options", [["--data-dir", "does-not-exist"], ["--redis", "redis://127.0.0.1:1"]])
def test_without_redis_time_lag_is_known_and_one_line_says_what_is_not(korvet, topic, group, options):
    offsets = send(producer(korvet.bootstrap), topic, 0, records())
    commit(korvet, group, topic, offsets[2])
    before_ms = time.time_ns() // 1_000_000
    done = run("describe", group, "-b", korvet.bootstrap, *options, "--json")
    waiting_ms = time.time_ns() // 1_000_000 - TIMES_MS[2]
    (row,) = json.loads(done.stdout)["offsets"]
    assert row["record_lag"] is None
    assert before_ms - TIMES_MS[2] <= row["lag_ms"] <= waiting_ms
    assert done.stderr.startswith("records are not counted: ")
    assert "--redis URL" in done.stderr
    assert done.stderr.count("\n") == 1
    done = run("list", "-b", korvet.bootstrap, *options, "--json")
    (row,) = [row for row in json.loads(done.stdout) if row["group"] == group]
    assert row["record_lag"] is None
    assert row["lag_ms"] >= waiting_ms
    commit(korvet, group, topic, offsets[4] + 1)
    done = run("describe", group, "-b", korvet.bootstrap, *options, "--json")
    assert [(row["record_lag"], row["lag_ms"]) for row in json.loads(done.stdout)["offsets"]] == [(0, 0)]
    assert done.stderr == ""


def test_without_redis_dense_offsets_are_counted(korvet, new_topic, group):
    name = new_topic(2, {"offset.assignment": "dense", "message.timestamp.type": "LogAppendTime"})
    for partition in (0, 1):
        send(producer(korvet.bootstrap), name, partition, records())
    before_ms = time.time_ns() // 1_000_000
    commit(korvet, group, name, 2, 5)
    away = ("-b", korvet.bootstrap, "--data-dir", "does-not-exist", "--json")
    done = run("describe", group, *away)
    rows = json.loads(done.stdout)["offsets"]
    assert [(row["record_lag"], row["status"]) for row in rows] == [(3, None), (0, "ok")]
    # By the append time, not by the producer's.
    assert 0 <= rows[0]["lag_ms"] < before_ms - TIMES_MS[2]
    assert rows[1]["lag_ms"] == 0
    assert done.stderr == ""
    (row,) = [row for row in json.loads(run("list", *away).stdout) if row["group"] == group]
    assert (row["record_lag"], row["lag_ms"] > 0) == (3, True)


def test_without_redis_a_removed_tail_is_nothing_unread(korvet, topic, group):
    offsets = send(producer(korvet.bootstrap), topic, 0, records())
    commit(korvet, group, topic, offsets[3])
    korvet.redis.xdel(stream(topic), *(entry_id(offset) for offset in offsets[3:]))
    done = run("describe", group, "-b", korvet.bootstrap, "--data-dir", "does-not-exist", "--json")
    assert [(row["record_lag"], row["lag_ms"]) for row in json.loads(done.stdout)["offsets"]] == [(0, 0)]


def test_a_redis_of_another_cluster_is_left_as_it_is(korvet, topic, group):
    send(producer(korvet.bootstrap), topic, 0, records())
    commit(korvet, group, topic, 0)
    done = run("describe", group, *at(korvet, "--keyspace", "elsewhere", "--json"))
    assert json.loads(done.stdout)["offsets"][0]["record_lag"] is None
    assert "is not that of this broker" in done.stderr
    assert korvet.redis.keys("*elsewhere*") == []


def test_groups_of_the_consumer_protocol_are_described(korvet, topic, group):
    send(producer(korvet.bootstrap), topic, 0, records())
    settings = {"group_protocol": "consumer", "auto_offset_reset": "earliest", "client_id": "new"}
    client = consumer(korvet.bootstrap, group, **settings)
    client.subscribe([topic])
    take(client, len(AGES_MS))
    client.commit(asynchronous=False)
    found = describe(korvet, group)
    assert (found["state"], found["protocol"], found["record_lag"]) == ("Stable", "uniform", 0)
    assert found["status"] == listed(korvet, group)["status"] == "ok"
    (member,) = found["members"]
    assert (member["client"], member["assigned"]) == ("new", [f"{topic}-0"])
    client.close()
    assert describe(korvet, group)["state"] == "Empty"
    assert listed(korvet, group)["state"] == "Empty"


def test_a_broker_at_work_does_not_notice(own_korvet):
    """The command takes no lease, and loads no library that Redis has."""
    # The broker would notice the missing functions when it polls Redis groups, and load them again.
    server: KorvetServer = own_korvet("-s", "native.groups.enable=false")
    offsets = send(producer(server.bootstrap), "orders", 0, records())
    commit(server, "readers", "orders", offsets[3])

    def state() -> tuple[Any, ...]:
        loads = server.redis.info("commandstats").get("cmdstat_function|load", {}).get("calls")
        held = server.redis.hgetall("{korvet}:brokers")
        # Token and description: the other fields change with each renewal and acknowledged version.
        leases = {node: lease.split(b" ", 5)[1::4] for node, lease in held.items()}
        return loads, leases, cluster_id(server)

    before = state()
    check(server, "readers", 2, TIMES_MS[3])
    assert state() == before

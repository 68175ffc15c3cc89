"""Apache Kafka's command-line tools, unmodified and with their default configuration."""

from __future__ import annotations

import json
import re

import pytest
from confluent_kafka import TopicPartition

from korvet.offsets.partition import partition_for
from tests.clients.test_confluent import numbered
from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

pytestmark = pytest.mark.clients


@pytest.fixture
def at(broker) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


def json_objects(text: str) -> list[dict]:
    """Parse objects that the formatters print without separators."""
    decoder, found, position = json.JSONDecoder(), [], 0
    text = text.strip()
    while position < len(text):
        value, position = decoder.raw_decode(text, position)
        found.append(value)
    return found


@pytest.mark.short
def test_console_producer_and_consumer(broker, topic, java, at, group):
    lines = [f"k{n}:значение {n}" for n in range(50)]
    java.run(
        "console-producer",
        *at,
        *("--topic", topic, "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        stdin="\n".join(lines).encode() + b"\n",
    )
    shown = java.run(
        "console-consumer",
        *at,
        *("--topic", topic, "--from-beginning", "--max-messages", "50", "--group", group),
        *("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"),
    )
    assert shown.splitlines() == lines
    assert [read.record.key for read in read_all(broker.bootstrap, topic)] == [b"k%d" % n for n in range(50)]


def test_console_consumer_of_the_consumer_protocol(broker, topic, java, at, group):
    """The consumer reads and commits, and Kafka's tools understand the group and its records."""
    send(producer(broker.bootstrap), topic, 0, numbered(20))
    shown = java.run(
        "console-consumer",
        *at,
        *("--topic", topic, "--from-beginning", "--max-messages", "20", "--group", group),
        *("--command-property", "group.protocol=consumer"),
    )
    assert shown.split() == [f"v{n}" for n in range(20)]
    listed = java.run("consumer-groups", *at, "--list", "--type", "consumer", "--state")
    (line,) = [line.split() for line in listed.splitlines() if line.startswith(f"{group} ")]
    assert (line[0], line[1].lower(), line[-1]) == (group, "consumer", "Empty")
    (row,) = rows(java.run("consumer-groups", *at, "--describe", "--group", group))
    assert (row["TOPIC"], row["LAG"]) == (topic, "0")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_console_producer_with_every_codec(broker, topic, java, at, codec):
    lines = [f"line {n} {'again ' * 20}" for n in range(200)]
    text = "\n".join(lines).encode() + b"\n"
    java.run("console-producer", *at, "--topic", topic, "--compression-codec", codec, stdin=text)
    assert [read.record.value for read in read_all(broker.bootstrap, topic)] == [
        line.encode() for line in lines
    ]


def test_java_reads_every_awkward_record(broker, topic, java):
    shapes = [(None, None), (b"", b""), (None, b""), (b"", None), (b"\xff\x00", b"\x00" * 300)]
    headers = (("h", None), ("h", b""), ("h", b"\xff"), ("ключ", b"1"))
    records = [Record(key, value, headers, NOW_MS) for key, value in shapes]
    offsets = send(producer(broker.bootstrap), topic, 0, records)
    lines = java.run("ReadBack", broker.bootstrap, topic, "0").splitlines()
    assert lines == [f"{offset} {record.digest()}" for offset, record in zip(offsets, records, strict=True)]


def test_topics_tool(java, at, fresh):
    name = fresh("tool")
    java.run(
        "topics", *at, "--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=3600000"
    )
    assert name in java.run("topics", *at, "--list").splitlines()
    described = java.run("topics", *at, "--describe", "--topic", name)
    assert re.search(rf"Topic: {name}\s+TopicId: \S+\s+PartitionCount: 3\s+ReplicationFactor: 1", described)
    assert "retention.ms=3600000" in described
    assert len(re.findall(r"Partition: \d\s+Leader: \d+", described)) == 3
    java.run("topics", *at, "--alter", "--topic", name, "--partitions", "4")
    assert "PartitionCount: 4" in java.run("topics", *at, "--describe", "--topic", name)
    assert "already exists" in java.attempt("topics", *at, "--create", "--topic", name)
    java.run("topics", *at, "--delete", "--topic", name)
    until(lambda: name not in java.run("topics", *at, "--list").splitlines(), 30, "the topic is gone")


def test_internal_topic_is_listed_as_such(broker, java, at, group, topic):
    commit(broker, group, topic, 1)
    assert "__consumer_offsets" in java.run("topics", *at, "--list").splitlines()
    assert "__consumer_offsets" not in java.run("topics", *at, "--list", "--exclude-internal").splitlines()


def test_configs_tool(java, at, new_topic):
    name = new_topic(1, {"cleanup.policy": "compact"})
    shown = java.run("configs", *at, "--describe", "--entity-type", "topics", "--entity-name", name)
    assert "cleanup.policy=compact" in shown
    everything = java.run(
        "configs", *at, "--describe", "--all", "--entity-type", "topics", "--entity-name", name
    )
    assert "retention.ms=604800000" in everything
    assert "cleanup.policy=compact" in everything


def test_configs_tool_alters_topics(java, at, new_topic):
    name = new_topic(1, {"retention.bytes": "7777"})
    entity = ("--entity-type", "topics", "--entity-name", name)
    added = "retention.ms=5000,cleanup.policy=[compact,delete]"
    done = java.run("configs", *at, "--alter", *entity, "--add-config", added)
    assert f"Completed updating config for topic {name}." in done
    java.run("configs", *at, "--alter", *entity, "--delete-config", "retention.bytes")
    shown = java.run("configs", *at, "--describe", *entity)
    assert "retention.ms=5000 " in shown
    assert "cleanup.policy=compact,delete " in shown
    assert "7777" not in shown
    refused = java.attempt("configs", *at, "--alter", *entity, "--add-config", "retention.ms=soon")
    assert "InvalidConfigurationException" in refused
    assert "Invalid value soon for configuration retention.ms" in refused


def test_configs_tool_alters_groups(java, at, group):
    entity = ("--entity-type", "groups", "--entity-name", group)
    added = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000"
    assert "Completed updating config" in java.run("configs", *at, "--alter", *entity, "--add-config", added)
    shown = java.run("configs", *at, "--describe", *entity)
    assert "consumer.session.timeout.ms=50000 " in shown
    assert "synonyms={DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000, DEFAULT_CONFIG:" in shown
    java.run("configs", *at, "--alter", *entity, "--delete-config", "consumer.session.timeout.ms")
    listed = java.run("configs", *at, "--describe", "--entity-type", "groups")
    assert f"Dynamic configs for group {group} are:" in listed
    assert "50000" not in listed
    refused = java.attempt(
        "configs", *at, "--alter", *entity, "--add-config", "consumer.session.timeout.ms=1"
    )
    assert "InvalidConfigurationException" in refused
    assert "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive." in refused


def test_features_tool(java, at):
    shown = [line.split() for line in java.run("features", *at, "describe").splitlines()]
    levels = {words[1]: words[3:8:2] for words in shown if words and words[0] == "Feature:"}
    assert levels["group.version"] == ["0", "1", "1"]
    assert levels["transaction.version"] == ["0", "2", "2"]


def test_get_offsets_tool(broker, java, at, topic):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))

    def asked(time: str) -> str:
        return java.run("get-offsets", *at, "--topic", topic, "--time", time).strip()

    assert asked("-1") == f"{topic}:0:{offsets[-1] + 1}"
    assert int(asked("-2").rpartition(":")[2]) <= offsets[0]
    assert asked("-3") == f"{topic}:0:{offsets[-1]}"  # the record with the greatest timestamp
    assert asked(str(NOW_MS + 4)) == f"{topic}:0:{offsets[4]}"


def test_broker_api_versions_tool(java, at):
    shown = java.run("broker-api-versions", *at)
    for name in ("Produce(0)", "Fetch(1)", "OffsetCommit(8)", "JoinGroup(11)", "OffsetDelete(47)"):
        assert re.search(rf"{re.escape(name)}: .*\[usable: \d+\]", shown), name


def commit(broker, group: str, topic: str, offset: int, metadata: str = "") -> None:
    client = consumer(broker.bootstrap, group)
    client.commit(offsets=[TopicPartition(topic, 0, offset, metadata)], asynchronous=False)
    client.close()


def rows(table: str) -> list[dict[str, str]]:
    """Parses a table of kafka-consumer-groups: one dictionary per row."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    start = next(number for number, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[start], line, strict=False)) for line in lines[start + 1 :]]


def test_consumer_groups_tool_describes_a_live_group(broker, java, at, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    client = consumer(broker.bootstrap, group, auto_offset_reset="earliest", client_id="live")
    client.subscribe([topic])
    take(client, 10)
    client.commit(asynchronous=False)
    (row,) = rows(java.run("consumer-groups", *at, "--describe", "--group", group))
    assert (row["TOPIC"], row["PARTITION"], row["CLIENT-ID"]) == (topic, "0", "live")
    assert int(row["CURRENT-OFFSET"]) == int(row["LOG-END-OFFSET"]) == offsets[-1] + 1
    assert row["LAG"] == "0"
    (member,) = rows(java.run("consumer-groups", *at, "--describe", "--members", "--group", group))
    assert (member["CLIENT-ID"], member["#PARTITIONS"]) == ("live", "1")
    state = java.run("consumer-groups", *at, "--describe", "--state", "--group", group)
    assert "Stable" in state
    assert "range" in state
    client.close()


def test_consumer_groups_tool_lists_and_deletes(broker, java, at, topic, group):
    commit(broker, group, topic, 3)
    assert group in java.run("consumer-groups", *at, "--list").splitlines()
    states = java.run("consumer-groups", *at, "--list", "--state").splitlines()
    assert any(line.split()[0] == group and line.split()[-1] == "Empty" for line in states if line.strip())
    java.run("consumer-groups", *at, "--delete", "--group", group)
    assert group not in java.run("consumer-groups", *at, "--list").splitlines()


def test_consumer_groups_tool_resets_and_deletes_offsets(broker, java, at, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    commit(broker, group, topic, offsets[-1] + 1)
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--execute")

    def current() -> str:
        (row,) = rows(java.run("consumer-groups", *at, "--describe", "--group", group))
        return row["CURRENT-OFFSET"]

    java.run("consumer-groups", *at, *reset, "--to-offset", str(offsets[4]))
    assert current() == str(offsets[4])
    java.run("consumer-groups", *at, *reset, "--to-latest")
    assert current() == str(offsets[-1] + 1)
    java.run("consumer-groups", *at, *reset, "--to-datetime", "2020-01-01T00:00:00.000")
    assert current() == str(offsets[0])
    java.run("consumer-groups", *at, "--delete-offsets", "--group", group, "--topic", topic)
    shown = java.attempt("consumer-groups", *at, "--describe", "--group", group)
    assert topic not in shown


def test_console_formatters_show_live_groups(broker, java, at, topic, group):
    """The JSON of the official formatters for one group matches the actions of its clients."""
    send(producer(broker.bootstrap), topic, 0, numbered(3))
    client = consumer(broker.bootstrap, group, auto_offset_reset="earliest", client_id="formatted")
    client.subscribe([topic])
    take(client, 3)
    (position,) = client.position([TopicPartition(topic, 0)])
    client.commit(offsets=[TopicPartition(topic, 0, position.offset, metadata="été")], asynchronous=False)

    def shown(formatter: str) -> list[dict]:
        # Without --partition it would join a group, and so write to the topic that it reads.
        text = java.run(
            "console-consumer",
            *at,
            *(
                "--topic",
                "__consumer_offsets",
                "--partition",
                str(partition_for(group)),
                "--offset",
                "earliest",
            ),
            *("--formatter", f"org.apache.kafka.tools.consumer.{formatter}", "--timeout-ms", "4000"),
        )
        return [found for found in json_objects(text) if found["key"]["data"]["group"] == group]

    commit_record = shown("OffsetsMessageFormatter")[-1]
    assert commit_record["key"] == {"type": 1, "data": {"group": group, "topic": topic, "partition": 0}}
    value = commit_record["value"]
    assert value["version"] in (3, 4)
    # The client's binding sends a NUL after the metadata, and the broker stores it.
    assert (value["data"]["offset"], value["data"]["metadata"]) == (position.offset, "été\0")
    assert value["data"]["leaderEpoch"] >= -1

    metadata = shown("GroupMetadataMessageFormatter")[-1]
    assert metadata["key"] == {"type": 2, "data": {"group": group}}
    data = metadata["value"]["data"]
    assert (data["protocolType"], data["protocol"], data["generation"]) == ("consumer", "range", 1)
    (member,) = data["members"]
    assert member["clientId"] == "formatted"
    assert member["memberId"] == data["leader"] == client.memberid()
    client.close()
    last = shown("GroupMetadataMessageFormatter")[-1]["value"]["data"]
    assert last["members"] == []
    assert last["generation"] == 2


def test_perf_tools(java, at, topic):
    size = ("--num-records", "2000")
    sent = java.run(
        *("producer-perf-test", *at, "--topic", topic, *size, "--record-size", "100", "--throughput", "-1"),
        *("--command-property", "acks=all", "compression.type=lz4"),
    )
    assert "2000 records sent" in sent
    lines = java.run("consumer-perf-test", *at, "--topic", topic, *size, "--timeout", "20000").splitlines()
    header, row = [line.split(", ") for line in lines if ", " in line][:2]
    assert int(dict(zip(header, row, strict=True))["data.consumed.in.nMsg"]) == 2000


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_verifiable_tools(java, at, topic, group):
    limit = ("--topic", topic, "--max-messages", "50")
    sent = json_lines(java.run("verifiable-producer", *at, *limit, "--acks", "-1"))
    acknowledged = [one for one in sent if one["name"] == "producer_send_success"]
    assert [one["value"] for one in acknowledged] == [str(number) for number in range(50)]
    assert (sent[-1]["sent"], sent[-1]["acked"]) == (50, 50)
    seen = json_lines(java.run("verifiable-consumer", *at, *limit, "--group-id", group))
    consumed = [one for one in seen if one["name"] == "records_consumed"]
    assert sum(one["count"] for one in consumed) == 50
    committed = [one for one in seen if one["name"] == "offsets_committed"]
    assert all(one["success"] for one in committed)
    assert committed[-1]["offsets"][0]["offset"] == acknowledged[-1]["offset"] + 1

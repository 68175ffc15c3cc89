"""The tables of docs/reference/ that don't come from the registry: tested clients, missing APIs.

A test checks that the clients are run as described, and that every missing API has a reason.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1] / "tests" / "clients"


@dataclass(frozen=True, slots=True)
class Client:
    """A client: its version, what is tested, by which files, and whether every run includes them."""

    name: str
    version: str
    what: str
    files: tuple[str, ...]
    every_run: bool = True


@dataclass(frozen=True, slots=True)
class Missing:
    """APIs that korvet doesn't advertise, by the names of their requests, with the reason."""

    what: str
    apis: tuple[str, ...]
    why: str


_WHOLE_SESSION: Final = (
    "create, produce with every codec, consume, a second member joins and leaves the group, commit, seek, "
    "describe, lag, delete"
)
_TOKENS: Final = "test_oauthbearer.py"
_LIBRDKAFKA: Final = (
    "test_confluent.py",
    "test_groups.py",
    "test_random_records.py",
    "test_security.py",
    "test_share_groups.py",
    "test_transactions.py",
    _TOKENS,
)


def clients() -> tuple[Client, ...]:
    """Returns all tested clients. The tests' files pin their versions; Python clients are the newest."""
    modules = (TESTS / "go" / "go.mod").read_text()
    packages = json.loads((TESTS / "node" / "package.json").read_text())["dependencies"]
    pom = (TESTS / "java" / "pom.xml").read_text()
    kafka = re.findall(r"<artifactId>kafka-tools</artifactId>\s*<version>(.*?)</version>", pom)[0]

    def module(name: str) -> str:
        return re.findall(rf"{re.escape(name)} v(\S+)", modules)[0]

    return (
        Client(
            "librdkafka (confluent-kafka)",
            "newest",
            f"{_WHOLE_SESSION}, static members, groups of the consumer protocol (KIP-848), random records, "
            "with native writers, TLS and SASL, tokens, transactions, share groups",
            _LIBRDKAFKA,
        ),
        Client("kcat", "Debian's", "list, produce, consume, query, group", ("test_kcat.py",)),
        *_of_java(kafka),
        Client(
            "kafka-python",
            "newest",
            "producers, codecs, groups, offsets, administration, tokens",
            ("test_kafka_python.py", _TOKENS),
        ),
        Client(
            "aiokafka",
            "newest",
            "idempotent and plain producers, codecs, groups, offsets for times, seek, administration, tokens",
            ("test_aiokafka.py", _TOKENS),
        ),
        Client(
            "kafkajs",
            packages["kafkajs"],
            "administration, groups, gzip, seek, tokens",
            ("test_kafkajs.py", _TOKENS),
        ),
        Client(
            "@platformatic/kafka", packages["@platformatic/kafka"], _WHOLE_SESSION, ("test_platformatic.py",)
        ),
        *(
            Client(name, module(path), f"{_WHOLE_SESSION}{more}", ("test_go.py", *others), every_run=False)
            for name, path, more, *others in (
                ("franz-go", "github.com/twmb/franz-go", ", transactions, tokens", _TOKENS),
                ("sarama", "github.com/IBM/sarama", ""),
                ("segmentio/kafka-go", "github.com/segmentio/kafka-go", ""),
            )
        ),
        Client(
            "kafka-python's and franz-go's own tests",
            "as above",
            "run unchanged, kafka-python's on `korvet serve`, franz-go's on the broker of `korvet.testing`",
            ("test_suites.py",),
            every_run=False,
        ),
    )


def _of_java(kafka: str) -> tuple[Client, ...]:
    return (
        Client(
            "Apache Kafka, Java",
            kafka,
            "console producer and consumer in both group protocols, formatters of `__consumer_offsets`, "
            "`kafka-topics`, `kafka-configs`, `kafka-consumer-groups`, `kafka-get-offsets`, "
            "`kafka-broker-api-versions`, batches with bad records, tokens, console and verifiable share "
            "consumer, `kafka-share-groups`",
            ("test_java_tools.py", "test_bad_records.py", "test_share_groups.py", _TOKENS),
        ),
        Client(
            "Kafka Connect and MirrorMaker 2",
            kafka,
            "file source and sink in distributed mode with a restart; `exactly.once.source.support` with "
            "fenced tasks and a killed worker; records and group offsets from one korvet to another",
            ("test_connect.py",),
            every_run=False,
        ),
        Client(
            "Kafka Streams",
            kafka,
            "word count with `exactly_once_v2`, a state store with its changelog, a repartition topic, "
            "killed instances; `group.protocol=classic`",
            ("test_streams.py",),
        ),
    )


MISSING: Final = (
    Missing(
        "streams groups",
        ("StreamsGroupHeartbeat", "StreamsGroupDescribe"),
        "Kafka Streams works with `group.protocol=classic`",
    ),
    Missing(
        "delegation tokens",
        (
            "CreateDelegationToken",
            "RenewDelegationToken",
            "ExpireDelegationToken",
            "DescribeDelegationToken",
        ),
        "use SCRAM, PLAIN or certificates",
    ),
    Missing(
        "changes of the metadata quorum",
        ("AddRaftVoter", "RemoveRaftVoter", "UnregisterBroker"),
        "brokers coordinate through Redis: there are no voters to change",
    ),
    Missing(
        "client metrics",
        ("GetTelemetrySubscriptions", "PushTelemetry"),
        "clients send no metrics without a subscription",
    ),
    Missing(
        "requests between brokers",
        (
            "AllocateProducerIds",
            "AlterPartition",
            "AssignReplicasToDirs",
            "BeginQuorumEpoch",
            "BrokerHeartbeat",
            "BrokerRegistration",
            "ControllerRegistration",
            "DeleteShareGroupState",
            "EndQuorumEpoch",
            "Envelope",
            "FetchSnapshot",
            "InitializeShareGroupState",
            "ReadShareGroupState",
            "ReadShareGroupStateSummary",
            "UpdateRaftVoter",
            "Vote",
            "WriteShareGroupState",
        ),
        "korvet's brokers coordinate through Redis",
    ),
)

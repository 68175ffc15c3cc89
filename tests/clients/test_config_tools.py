"""kafka-configs and kafka-features for brokers, loggers and features: their output on Apache Kafka 4.4."""

from __future__ import annotations

import re

import pytest

from korvet.cli.client import Cluster
from korvet.cli.config_requests import ResourceType, alter

pytestmark = pytest.mark.clients

BACKOFF, POLICY, UNKNOWN = "log.cleaner.backoff.ms", "log.cleanup.policy", "no.such.config"
BROKER, ALL = (
    ("--entity-type", "brokers", "--entity-name", "1"),
    ("--entity-type", "brokers", "--entity-default"),
)
LOGGERS = ("--entity-type", "broker-loggers", "--entity-name", "1")
DONE, DONE_ALL = (
    "Completed updating config for broker 1.",
    "Completed updating default config for brokers in the cluster.",
)
DONE_LOGGERS = "Completed updating config for broker-logger 1."
STATIC = "InvalidRequestException: Cannot update these configs dynamically: [num.partitions]"
BY_LISTENER = (
    "InvalidRequestException: These security configs can be dynamically updated only per-listener using the "
    "listener prefix: [ssl.keystore.location]"
)
OF_ONE = (
    "InvalidRequestException: Cannot update these configs at default cluster level, broker id must be "
    "specified: [listener.name.plaintext.ssl.keystore.location]"
)
NO_LEVEL = (
    "InvalidConfigurationException: Cannot set the log level of root to LOUD as it is not a supported log "
    "level. Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"
)
IGNORED = re.compile(r"operation\(s\) failed|^Picked up")
FEATURE = re.compile(
    r"Feature: (\S+)\s+SupportedMinVersion: (.*?)\s+SupportedMaxVersion: (.*?)\s+"
    r"FinalizedVersionLevel: (.*?)\s+Epoch"
)
FAILED = "The update failed for all features since the following feature had an error: "


@pytest.fixture
def configs(broker, java):
    """Runs kafka-configs. Returns the lines of its output, or what it was refused with."""

    def run(*arguments: str) -> list[str]:
        shown = java.attempt("configs", "--bootstrap-server", broker.bootstrap, *arguments)
        refused = re.findall(r"^Caused by: org\.apache\.kafka\.common\.errors\.(.*)$", shown, re.MULTILINE)
        lines = [line.strip() for line in shown.splitlines() if not line.startswith("Picked up")]
        # Other tests, and a real Kafka with ELR, may have set other ones.
        return refused[-1:] or [line for line in lines if not line.startswith("min.insync.replicas")]

    yield run
    # Without a JVM.
    with Cluster(broker.bootstrap) as cluster:
        alter(cluster, ResourceType.BROKER, "", dict.fromkeys((BACKOFF, POLICY, UNKNOWN)))
        alter(cluster, ResourceType.BROKER, "1", {BACKOFF: None})


def test_configs_of_brokers(configs):
    added = f"{BACKOFF}=20000,{POLICY}=[delete,compact],{UNKNOWN}=1"
    assert configs("--alter", *ALL, "--add-config", added) == [DONE_ALL]
    assert configs("--alter", *BROKER, "--add-config", f"{BACKOFF}=30000") == [DONE]
    synonyms = [
        f"DYNAMIC_BROKER_CONFIG:{BACKOFF}=30000",
        f"DYNAMIC_DEFAULT_BROKER_CONFIG:{BACKOFF}=20000",
        f"DEFAULT_CONFIG:{BACKOFF}=15000",
    ]
    of_broker = [
        "Dynamic configs for broker 1 are:",
        f"{BACKOFF}=30000 sensitive=false synonyms={{{', '.join(synonyms)}}}",
    ]
    of_all = [
        "Default configs for brokers in the cluster are:",
        f"{BACKOFF}=20000 sensitive=false synonyms={{{synonyms[1]}}}",
        f"{POLICY}=delete,compact sensitive=false "
        f"synonyms={{DYNAMIC_DEFAULT_BROKER_CONFIG:{POLICY}=delete,compact}}",
        f"{UNKNOWN}=null sensitive=true synonyms={{DYNAMIC_DEFAULT_BROKER_CONFIG:{UNKNOWN}=null}}",
    ]
    assert configs("--describe", *BROKER) == of_broker
    assert configs("--describe", *ALL) == of_all
    assert configs("--describe", "--entity-type", "brokers") == of_broker + of_all
    for _ in range(2):
        assert configs("--alter", *BROKER, "--delete-config", BACKOFF) == [DONE]
    assert configs("--describe", *BROKER) == of_broker[:1]
    assert configs("--alter", *ALL, "--delete-config", f"{BACKOFF},{POLICY},{UNKNOWN}") == [DONE_ALL]
    assert configs("--describe", *ALL) == of_all[:1]


@pytest.mark.parametrize(
    ("entity", "added", "refused"),
    [
        (BROKER, "num.partitions=3", STATIC),
        (ALL, f"num.partitions=3,{BACKOFF}=5000", STATIC),
        (
            ALL,
            f"{BACKOFF}=soon",
            f"InvalidRequestException: Invalid value soon for configuration {BACKOFF}: "
            "Not a number of type LONG",
        ),
        (BROKER, "ssl.keystore.location=/x", BY_LISTENER),
        (ALL, "listener.name.plaintext.ssl.keystore.location=/x", OF_ONE),
        (LOGGERS, "root=LOUD", NO_LEVEL),
        (LOGGERS, "no.such=INFO", "Invalid broker logger(s): no.such"),
    ],
)
def test_configs_that_cannot_be(configs, entity, added, refused):
    assert configs("--alter", *entity, "--add-config", added) == [refused]


def test_levels_of_loggers(configs):
    before = configs("--describe", *LOGGERS)
    (root,) = [line for line in before if line.startswith("root=")]
    level = root.removeprefix("root=").split()[0]
    assert configs("--alter", *LOGGERS, "--add-config", "root=ERROR") == [DONE_LOGGERS]
    assert "root=ERROR sensitive=false synonyms={}" in configs("--describe", *LOGGERS)
    assert configs("--alter", *LOGGERS, "--delete-config", "root") == [
        "InvalidRequestException: Removing the log level of the root logger is not allowed"
    ]
    assert configs("--alter", *LOGGERS, "--add-config", f"root={level}") == [DONE_LOGGERS]


@pytest.fixture
def features(broker, java):
    def run(*arguments: str) -> list[str]:
        shown = java.attempt("features", "--bootstrap-server", broker.bootstrap, *arguments)
        return [line.strip() for line in shown.splitlines() if not IGNORED.search(line)]

    yield run
    run("upgrade", "--feature", "transaction.version=2", "--feature", "group.version=1")


def test_features(features):
    def shown() -> dict[str, tuple[str, str, str]]:
        return {found[0]: found[1:] for line in features("describe") for found in FEATURE.findall(line)}

    before = shown()
    assert before["group.version"] == ("0", "1", "1")
    assert before["transaction.version"] == ("0", "2", "2")
    assert before["metadata.version"] == ("3.3-IV3", "UNKNOWN 33", "UNKNOWN 33")
    one = ("--feature", "transaction.version=1")
    assert features("downgrade", *one, "--dry-run") == ["transaction.version can be downgraded to 1."]
    assert shown() == before
    assert features("downgrade", *one) == ["transaction.version was downgraded to 1."]
    assert shown() == before | {"transaction.version": ("0", "2", "1")}
    two = ("--feature", "transaction.version=2")
    assert features("upgrade", *two) == ["transaction.version was upgraded to 2."]
    too_low = (
        "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
        "unsafe downgrade."
    )
    assert features("upgrade", *one) == [
        f"Could not upgrade transaction.version to 1. {FAILED}Invalid update version 1 for feature "
        f"transaction.version. {too_low}"
    ]
    assert features("downgrade", "--feature", "metadata.version=25") == [
        f"Could not downgrade metadata.version to 25. {FAILED}Unsupported metadata.version downgrade "
        "from 33 to 25. Refusing to perform the requested downgrade because it might delete metadata "
        "information."
    ]
    assert features("upgrade", "--feature", "no.such=1") == [
        f"Could not upgrade no.such to 1. {FAILED}Invalid update version 1 for feature no.such. Local "
        "controller 1 does not support this feature."
    ]
    assert shown() == before

"""The Kafka cluster of a write: its bootstrap servers, and librdkafka's properties (options `kafka.*`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from korvet.spark.source.address import Secret
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_PREFIX = "kafka."
_SECRETS = (
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "ssl.key.password",
    "ssl.keystore.password",
)
# What makes each row arrive once; a different value would break it.
_OF_THE_SINK = frozenset(
    (
        "transactional.id",
        "transaction.timeout.ms",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "delivery.report.only.error",
        "enable.idempotence",
        "enable.gapless.guarantee",
        "acks",
        "request.required.acks",
        "partitioner",
        "group.id",
        "isolation.level",
        "allow.auto.create.topics",
    )
)
# Secrets under names that Spark doesn't hide in plans and logs, and what to use in their place.
_SHOWN = {
    "ssl.key.pem": "kafka.ssl.key.location, a file with the key in PEM",
    "sasl.oauthbearer.assertion.private.key.pem": "kafka.sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase": "a key without a passphrase",
}
# Properties of Kafka's Java clients, and those of librdkafka.
_OF_JAVA = {
    "sasl.jaas.config": "kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": "kafka.ssl.ca.location, a file with certificates in PEM",
    "ssl.truststore.certificates": "kafka.ssl.ca.pem",
    "ssl.keystore.certificate.chain": "kafka.ssl.certificate.pem",
    "ssl.keystore.key": "kafka.ssl.key.location, a file with the key in PEM",
}


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """How to connect. No repr contains the properties, which may hold secrets."""

    bootstrap: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secrets: tuple[Secret, ...] = ()
    """Named like their properties, with the prefix `kafka.`."""

    def config(self) -> dict[str, object]:
        """Return librdkafka's configuration. Raises SourceError if this process can't read a secret."""
        found: dict[str, object] = {"bootstrap.servers": self.bootstrap, **dict(self.properties)}
        for secret in self.secrets:
            found[secret.name.removeprefix(_PREFIX)] = secret.reveal()
        return found


def parse_cluster(given: Mapping[str, str]) -> KafkaCluster:
    """Return the cluster of options whose names are in lower case.

    Raises SourceError for properties that the sink sets.
    """
    named = {name.removeprefix(_PREFIX): value for name, value in given.items() if name.startswith(_PREFIX)}
    bootstrap = named.pop("bootstrap.servers", DEFAULT_BOOTSTRAP)
    secrets = tuple(secret for name in _SECRETS if (secret := _secret(name, named)) is not None)
    for name in named:
        if name in _OF_THE_SINK:
            instead = "; use deliveryTimeout" if name.endswith("timeout.ms") else ""
            raise SourceError(f"{_PREFIX}{name}: the sink sets this property itself{instead}")
        if name in _SHOWN:
            raise SourceError(f"{_PREFIX}{name}: Spark's plans and logs would show it; use {_SHOWN[name]}")
        if name in _OF_JAVA:
            raise SourceError(f"{_PREFIX}{name} is a property of Java clients; use {_OF_JAVA[name]}")
    return KafkaCluster(bootstrap, tuple(sorted(named.items())), secrets)


def _secret(name: str, named: dict[str, str]) -> Secret | None:
    """The secret, which is taken out of the properties; None if it isn't given."""
    keys = (name, f"{name}file", f"{name}env")
    value, file, variable = (named.pop(key, None) for key in keys)
    if value is file is variable is None:
        return None
    return Secret(f"{_PREFIX}{name}", value, file, variable)

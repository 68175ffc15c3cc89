"""The Kafka cluster of a write: its bootstrap servers, and librdkafka's properties (options `kafka.*`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from korvet.spark.source.errors import SourceError
from korvet.spark.source.options import BOOTSTRAP, KAFKA, KAFKA_SECRETS, names_of

if TYPE_CHECKING:
    from korvet.spark.source.address import Secret
    from korvet.spark.source.options import Given

_PREFIX = "kafka."
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


def parse_cluster(given: Given) -> KafkaCluster:
    """Return the cluster of the options. Raises SourceError for properties that the sink sets."""
    own = {name.lower() for name in names_of(KAFKA)}
    named = {
        name.removeprefix(_PREFIX): text
        for name, text in given.texts.items()
        if name.startswith(_PREFIX) and name not in own
    }
    for name in named:
        if name in _OF_THE_SINK:
            instead = "; use deliveryTimeout" if name.endswith("timeout.ms") else ""
            raise SourceError(f"{_PREFIX}{name}: the sink sets this property itself{instead}")
        if name in _SHOWN:
            raise SourceError(f"{_PREFIX}{name}: Spark's plans and logs would show it; use {_SHOWN[name]}")
        if name in _OF_JAVA:
            raise SourceError(f"{_PREFIX}{name} is a property of Java clients; use {_OF_JAVA[name]}")
    secrets = tuple(secret for option in KAFKA_SECRETS if (secret := given[option.name]).is_given)
    return KafkaCluster(given[BOOTSTRAP], tuple(sorted(named.items())), secrets)

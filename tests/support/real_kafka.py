"""A real Kafka of the tests: what starts a KRaft node, and a Kafka of one node with TLS, logins by SASL, and
ACLs.

It runs from the jars of Kafka's tools, or from those in the folder that KORVET_TEST_KAFKA_JARS names.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import Child, run
from tests.support.wire import RawConnection, header

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.certificates import Authority
    from tests.support.java import JavaTools

JARS_VARIABLE = "KORVET_TEST_KAFKA_JARS"
# Of __consumer_offsets.
PARTITIONS = 5
START_TIMEOUT_S = 90
FORMAT_TIMEOUT_S = 60
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_INIT_PRODUCER_ID, _TXN_OFFSET_COMMIT = 22, 28
_COORDINATOR_ERRORS = (14, 15, 16)
COORDINATOR_TIMEOUT_S = 30
# Of a transaction that hangs.
_TIMEOUT_MS = 60_000
# Users and their passwords, for PLAIN and SCRAM. The first may do everything.
USERS = {"admin": "admin-secret", "ada": "ada-secret", "bob": "bob-secret", "cem": "cem-secret"}
_MODULES = "org.apache.kafka.common.security"
_PASSWORD = 'required username="{user}" password="{password}";'
LOGINS = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule {_PASSWORD}",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule {_PASSWORD}",
    "OAUTHBEARER": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="{user}";',
}


def start_node(tools: JavaTools, properties: Path, log: Path, *options: str) -> Child:
    """Format the storage of a node with these properties, and start it. options: of `kafka-storage format`.

    Doesn't wait until the node serves.
    """
    jars = os.environ.get(JARS_VARIABLE)
    if jars is not None:
        tools = replace(tools, class_path=f"{jars}/*")
    arguments = ["format", "-t", CLUSTER_ID, "-c", str(properties), *options]
    done = run(tools.command("kafka.tools.StorageTool", arguments), FORMAT_TIMEOUT_S)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return Child(tools.command("kafka.Kafka", [str(properties)]), log)


class RealKafka:
    """Listeners: PLAINTEXT (`bootstrap`), SASL_SSL and SASL_PLAINTEXT with LOGINS, and SSL with certificates.

    Everyone at PLAINTEXT is ANONYMOUS, a super user.
    """

    def __init__(self, tools: JavaTools, folder: Path, authority: Authority, **settings: str) -> None:
        self._tools = tools
        self._folder = folder
        self._authority = authority
        self._child: Child | None = None
        self._ports = {
            name: free_port() for name in ("PLAINTEXT", "SASL_SSL", "SASL_PLAINTEXT", "SSL", "CONTROLLER")
        }
        self._file = folder / "server.properties"
        self._file.write_text(
            "".join(f"{name}={value}\n" for name, value in {**self._settings(), **settings}.items())
        )

    @property
    def bootstrap(self) -> str:
        return self.at("PLAINTEXT")

    def at(self, listener: str) -> str:
        """The address of a listener."""
        return f"localhost:{self._ports[listener]}"

    def start(self) -> RealKafka:
        scram = [
            word
            for user, password in USERS.items()
            for word in ("--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]")
        ]
        child = self._child = start_node(self._tools, self._file, self._folder / "broker.log", *scram)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})

        def serves() -> bool:
            assert child.running, child.output()[-2000:]
            try:
                return bool(admin.list_topics(timeout=1).brokers)
            except KafkaException:
                return False

        until(serves, START_TIMEOUT_S, "Kafka has started")
        return self

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()

    def client(self, mechanism: str, user: str = "admin", **more: str) -> dict[str, str]:
        """The properties of a Java client that logs in at SASL_SSL."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": LOGINS[mechanism].format(user=user, password=USERS[user]),
            **self.trust(),
            **more,
        }

    def hang(self, transactional_id: str, group: str, topic: str, offset: int) -> None:
        """Commit an offset in a transaction that its coordinator doesn't learn of, so that nobody ends it."""
        with RawConnection("localhost", self._ports["PLAINTEXT"]) as connection:
            name = _string(transactional_id)
            request = header(_INIT_PRODUCER_ID, 0, 1) + name + struct.pack(">i", _TIMEOUT_MS)

            def begin() -> tuple[int, int] | None:
                _, _, error, producer_id, epoch = struct.unpack(">iihqh", connection.ask(request))
                # The broker may have to create or load the topic of transactions first.
                assert error in {0, *_COORDINATOR_ERRORS}, error
                return None if error else (producer_id, epoch)

            producer_id, epoch = until(begin, COORDINATOR_TIMEOUT_S, "there is a coordinator")
            partition = struct.pack(">iiqih", 1, 0, offset, -1, -1)
            body = _string(group) + struct.pack(">qhi", producer_id, epoch, 1) + _string(topic) + partition
            answer = connection.ask(header(_TXN_OFFSET_COMMIT, 2, 2) + name + body)
            assert answer[-2:] == b"\0\0", answer

    def trust(self) -> dict[str, str]:
        """The properties of a client that trusts the brokers' certificates."""
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._authority.certificate)}

    def _settings(self) -> Mapping[str, str]:
        protocols = {name: name for name in self._ports} | {"CONTROLLER": "PLAINTEXT"}
        logins = {
            f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config": _of_server(mechanism)
            for listener in ("sasl_ssl", "sasl_plaintext")
            for mechanism in LOGINS
        }
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@localhost:{self._ports['CONTROLLER']}",
            "listeners": ",".join(f"{name}://localhost:{port}" for name, port in self._ports.items()),
            "advertised.listeners": ",".join(
                f"{name}://localhost:{port}" for name, port in self._ports.items() if name != "CONTROLLER"
            ),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(LOGINS),
            **logins,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._authority.issue("broker", "/CN=broker")),
            **self.trust(),
            "listener.name.ssl.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS;User:CN=ada",
            "log.dirs": str(self._folder / "logs"),
            # Lets a client make a transaction hang.
            "transaction.partition.verification.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            "group.consumer.heartbeat.interval.ms": "500",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "offsets.topic.num.partitions": str(PARTITIONS),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "2",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _of_server(mechanism: str) -> str:
    if mechanism == "PLAIN":
        users = " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
        return f"{_MODULES}.plain.PlainLoginModule required {users};"
    if mechanism == "OAUTHBEARER":
        return f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;"
    return f"{_MODULES}.scram.ScramLoginModule required;"

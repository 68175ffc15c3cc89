"""Clients with TLS and SASL: librdkafka and kafka-python authenticate, produce and consume.

Certificates name principals, and change while the broker runs. Sessions end and are renewed.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from korvet.cli.app import korvet
from korvet.config.checks import STANDARD_AUTHORIZER
from korvet.config.keys import clean_environment
from tests.api.asking import authenticating, is_closed
from tests.support.certificates import Authority
from tests.support.polling import patient, until
from tests.support.ports import free_port
from tests.support.processes import run
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.api.asking import Client
    from tests.support.java import JavaTools

pytestmark = pytest.mark.clients

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
TIMEOUT_S = 30
SESSION_MS = 2000


class Secured:
    """A broker with four listeners, and the clients' settings for each."""

    def __init__(self, folder: Path, client_auth: str = "requested") -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.keystore = folder / "keystore.pem"
        self.truststore = folder / "truststore.pem"
        shutil.copy(self.authority.issue("first", "/CN=first"), self.keystore)
        shutil.copy(self.authority.certificate, self.truststore)
        self.server = KorvetServer()
        self.ports = {name: free_port() for name in ("SASL_PLAINTEXT", "SASL_SSL", "SSL", "OTHER")}
        listeners = [f"PLAINTEXT://127.0.0.1:{self.server.port}"]
        listeners += [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        other = self.authority.issue("other", "/CN=other")
        for pair in (
            f"listeners={','.join(listeners)}",
            "listener.security.protocol.map=OTHER:SASL_SSL",
            f"listener.name.other.ssl.keystore.location={other}",
            "listener.name.other.sasl.enabled.mechanisms=PLAIN",
            f'listener.name.other.plain.sasl.jaas.config={MODULE} required user_admin="another";',
        ):
            self.server.options += ["--set", pair]
        self.settings: list[str] = []
        for pair in (
            f"ssl.keystore.location={self.keystore}",
            f"ssl.truststore.location={self.truststore}",
            f"ssl.client.auth={client_auth}",
            r"ssl.principal.mapping.rules=RULE:^CN=(.*?),O=korvet$/$1/,DEFAULT",
            f'plain.sasl.jaas.config={MODULE} required user_admin="secret";',
            f"connections.max.reauth.ms={SESSION_MS}",
            f"authorizer.class.name={STANDARD_AUTHORIZER}",
            "super.users=User:admin",
        ):
            self.settings += ["--set", pair]
        self.server.options += self.settings

    def sasl(
        self, mechanism: str, user: str, password: str, *, tls: bool = False, listener: str | None = None
    ) -> dict[str, Any]:
        protocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
        found = {
            "bootstrap.servers": f"127.0.0.1:{self.ports[listener or protocol]}",
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
        return found | ({"ssl.ca.location": str(self.authority.certificate)} if tls else {})

    def mutual(self, certificate: Path | None) -> dict[str, Any]:
        found = {
            "bootstrap.servers": f"127.0.0.1:{self.ports['SSL']}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
        }
        if certificate is not None:
            found |= {
                "ssl.certificate.location": str(certificate),
                "ssl.key.location": str(certificate),
            }
        return found

    def common_name(self, trusted: Path | None = None, listener: str = "SSL") -> str:
        """Returns the common name in a TLS listener's current certificate."""
        context = ssl.create_default_context(cafile=str(trusted or self.authority.certificate))
        with (
            socket.create_connection(("127.0.0.1", self.ports[listener]), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            certificate: Any = connection.getpeercert()
        return dict(pair for names in certificate["subject"] for pair in names)["commonName"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("tls"))
    try:
        found.server.start()
        admin = AdminClient(found.sasl("PLAIN", "admin", "secret"))
        mechanisms = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        credentials = [
            UserScramCredentialUpsertion("bob", ScramCredentialInfo(mechanism, 4096), b"pw")
            for mechanism in mechanisms
        ]
        for done in admin.alter_user_scram_credentials(credentials).values():
            done.result(TIMEOUT_S)
        for done in admin.create_topics([NewTopic("shared", 1, 1)]).values():
            done.result(TIMEOUT_S)
        anything = [
            AclBinding(kind, "shared", ResourcePatternType.PREFIXED, user, "*", AclOperation.ALL, allow)
            for kind in (ResourceType.TOPIC, ResourceType.GROUP)
            for user in ("User:bob", "User:someone")
            for allow in (AclPermissionType.ALLOW,)
        ]
        for done in admin.create_acls(anything).values():
            done.result(TIMEOUT_S)
        yield found
    finally:
        found.server.discard()


@pytest.fixture(scope="module")
def demanding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker that demands certificates of clients."""
    found = Secured(tmp_path_factory.mktemp("demanding"), "required")
    try:
        found.server.start()
        yield found
    finally:
        found.server.discard()


def round_trip(conf: dict[str, Any], value: bytes) -> None:
    """Produce a record and read it back in a group."""
    producer = Producer(conf)
    failures: list[Any] = []
    producer.produce("shared", value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == [None]
    group = {"group.id": f"shared-{value.decode()}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**conf, **group})
    try:
        consumer.subscribe(["shared"])

        def found() -> bool:
            message = consumer.poll(0.5)
            assert message is None or message.error() is None, message.error()
            return message is not None and message.value() == value

        until(found, TIMEOUT_S, "the record is read")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.short
def test_librdkafka_authenticates(secured: Secured, mechanism: str, tls: bool) -> None:
    conf = secured.sasl(mechanism, "bob", "pw", tls=tls)
    assert list(AdminClient(conf).list_topics(timeout=TIMEOUT_S).topics) == ["shared"]
    if mechanism == "SCRAM-SHA-512":
        round_trip(conf, f"{mechanism}-{tls}".encode())


def test_an_old_librdkafka_learns_from_the_log_why_it_is_refused(secured: Secured) -> None:
    """As by Kafka 4. The one of Debian 12 repeats its nonce."""
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("needs kcat on PATH")
    settings = secured.sasl("SCRAM-SHA-256", "bob", "pw")
    options = [f"-X{name}={value}" for name, value in settings.items()]
    done = subprocess.run(
        [program, "-L", "-m", "10", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(TIMEOUT_S),
    )
    (version,) = re.findall(r"librdkafka (\d+)\.(\d+)\.(\d+)", subprocess.getoutput(f"{program} -V"))
    if tuple(map(int, version)) >= (2, 6, 1):
        assert done.returncode == 0, done.stderr
        return
    assert "invalid credentials" in done.stderr
    why = "User:bob at 127.0.0.1 cannot log in: the client repeats its own nonce, as librdkafka before 2.6.1"
    found = [line for line in secured.server.tail(100_000).splitlines() if why in line]
    assert len(found) == 1
    assert f"client software librdkafka {'.'.join(version)}" in found[0]


def test_kafka_python_authenticates(secured: Secured) -> None:
    conf = {
        "bootstrap_servers": f"localhost:{secured.ports['SASL_SSL']}",
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(secured.authority.certificate),
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "bob",
        "sasl_plain_password": "pw",
    }
    producer = KafkaProducer(**conf)
    producer.send("shared", b"from kafka-python").get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer("shared", auto_offset_reset="earliest", consumer_timeout_ms=20_000, **conf)
    assert any(record.value == b"from kafka-python" for record in consumer)
    consumer.close()


def test_a_certificate_is_a_principal(secured: Secured) -> None:
    certificate = secured.authority.issue("someone", "/O=korvet/CN=someone")
    round_trip(secured.mutual(certificate), b"certified")
    for nobody in (None, secured.authority.issue("stranger", "/O=elsewhere/CN=someone")):
        assert AdminClient(secured.mutual(nobody)).list_topics(timeout=TIMEOUT_S).topics == {}


def test_a_listener_has_its_own_certificate_mechanisms_and_users(secured: Secured) -> None:
    assert secured.common_name(listener="OTHER") == "other"
    assert secured.common_name(listener="SASL_SSL") != "other"
    for listener, password in (("OTHER", "another"), ("SASL_SSL", "secret")):
        admin = AdminClient(secured.sasl("PLAIN", "admin", password, tls=True, listener=listener))
        (broker,) = admin.list_topics(timeout=TIMEOUT_S).brokers.values()
        assert broker.port == secured.ports[listener]
    for mechanism, user, password in (("PLAIN", "admin", "secret"), ("SCRAM-SHA-256", "bob", "pw")):
        with pytest.raises(KafkaException):
            AdminClient(secured.sasl(mechanism, user, password, tls=True, listener="OTHER")).list_topics(
                timeout=2
            )


def test_certificates_change_while_the_broker_runs(secured: Secured) -> None:
    before = secured.common_name()
    assert before in ("first", "second")
    secured.keystore.write_bytes(b"rubbish")
    until(lambda: "cannot be used" in secured.server.tail(10**6), TIMEOUT_S, "the broken file is noticed")
    assert secured.common_name() == before
    shutil.copy(secured.authority.issue("second", "/CN=second"), secured.keystore)
    until(lambda: secured.common_name() == "second", TIMEOUT_S, "the new certificate is shown")
    other = Authority(secured.folder, "other")
    stranger = other.issue("late", "/O=korvet/CN=someone")
    with pytest.raises(KafkaException):
        AdminClient(secured.mutual(stranger)).list_topics(timeout=2)
    secured.truststore.write_bytes(
        secured.authority.certificate.read_bytes() + other.certificate.read_bytes()
    )

    def trusted() -> bool:
        try:
            return "shared" in AdminClient(secured.mutual(stranger)).list_topics(timeout=2).topics
        except KafkaException:
            return False

    until(trusted, TIMEOUT_S, "the new authority is trusted")


def test_a_session_goes_on_after_its_end(secured: Secured) -> None:
    """librdkafka authenticates again before its session ends; nothing is lost (KIP-368)."""
    producer = Producer(secured.sasl("SCRAM-SHA-256", "bob", "pw"))
    ended: list[Any] = []
    over = secured.server.tail(10**6).count("session is over")
    began = time.monotonic()

    def lasted_for_sessions() -> bool:
        producer.produce("shared", b"x", on_delivery=lambda error, _: ended.append(error))
        producer.flush(TIMEOUT_S)
        return time.monotonic() - began > 2.2 * SESSION_MS / 1000

    until(lasted_for_sessions, TIMEOUT_S, "records are sent for several sessions")
    assert set(ended) == {None}
    assert secured.server.tail(10**6).count("session is over") == over


def test_acls_are_listed_as_they_were_made(secured: Secured) -> None:
    admin = AdminClient(secured.sasl("PLAIN", "admin", "secret"))
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        "shared",
        ResourcePatternType.PREFIXED,
        "User:bob",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    (found,) = admin.describe_acls(wanted).result(TIMEOUT_S)
    assert (found.principal, found.operation, found.host) == ("User:bob", AclOperation.ALL, "*")


@contextmanager
def raw_client(port: int, user: str, password: str) -> Iterator[Client]:
    """A connection that has authenticated with PLAIN and sends nothing by itself."""
    with authenticating(port, "PLAIN", f"\0{user}\0{password}".encode()) as (client, answer):
        assert answer.error_code == 0
        assert answer.session_lifetime.total_seconds() * 1000 == SESSION_MS
        yield client


def test_a_session_that_is_over_takes_no_more_requests(secured: Secured) -> None:
    with raw_client(secured.ports["SASL_PLAINTEXT"], "admin", "secret") as client:
        began = time.monotonic()
        until(partial(is_closed, client), TIMEOUT_S, "the session is over")
        assert time.monotonic() - began >= 0.9 * SESSION_MS / 1000


def test_all_brokers_follow_changes_and_tell_each_listeners_addresses(secured: Secured) -> None:
    store = f"unix://{secured.server.socket_path()}"
    second = KorvetServer("--node-id", "2", redis_url=store)
    port = free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{second.port},SASL_PLAINTEXT://127.0.0.1:{port}"
    second.options += ["--set", f"listeners={listeners}", *secured.settings]
    try:
        second.start()
        ports = {secured.ports["SASL_PLAINTEXT"], port}
        with raw_client(port, "admin", "secret") as client:
            assert client.raw.works()
        admin = AdminClient(secured.sasl("PLAIN", "admin", "secret"))

        def told() -> bool:
            brokers = admin.list_topics(timeout=TIMEOUT_S).brokers.values()
            return {broker.port for broker in brokers} == ports

        until(told, TIMEOUT_S, "both brokers are told, each with the port of this listener")
        salt = UserScramCredentialUpsertion(
            "late", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"pw"
        )
        for done in admin.alter_user_scram_credentials([salt]).values():
            done.result(TIMEOUT_S)
        seen = AclBinding(
            ResourceType.TOPIC,
            "shared",
            ResourcePatternType.LITERAL,
            "User:late",
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.ALLOW,
        )
        for done in admin.create_acls([seen]).values():
            done.result(TIMEOUT_S)

        def followed() -> bool:
            try:
                with raw_client(port, "late", "pw") as client:
                    topics = client("Metadata", 12, topics=None).topics
            except AssertionError:
                return False
            return [topic.name for topic in topics] == ["shared"]

        until(followed, TIMEOUT_S, "the other broker knows the user and what it may do")
    finally:
        second.stop()
        second.discard()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_the_commands_authenticate(secured: Secured, mechanism: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f"ssl.truststore.location={secured.authority.certificate}\n"
        'sasl.jaas.config=LoginModule required username="bob" password="pw";\n'
    )
    env = clean_environment() | {"KORVET_COMMAND_CONFIG": str(file)}
    command = [sys.executable, "-m", "korvet", "topics", "list", "--json"]
    command += ["--bootstrap-server", f"localhost:{secured.ports['SASL_SSL']}"]
    done = run(command, TIMEOUT_S, env=env)
    assert done.returncode == 0, done.stderr
    assert [topic["topic"] for topic in json.loads(done.stdout)] == ["shared"]
    file.write_text(file.read_text().replace('"pw"', '"wrong"'))
    done = run(command, TIMEOUT_S, env=env)
    assert done.returncode != 0
    assert b"SASL_AUTHENTICATION_FAILED" in done.stderr
    assert b"wrong" not in done.stderr


@pytest.mark.parametrize(
    ("listener", "protocol", "advice"),
    [
        ("SSL", "PLAINTEXT", "if the port expects TLS, set security.protocol=SSL or SASL_SSL"),
        ("SASL_SSL", "SASL_PLAINTEXT", "if the port expects TLS, set security.protocol=SSL or SASL_SSL"),
        ("SASL_PLAINTEXT", "SSL", "the port may expect plain text (security.protocol=PLAINTEXT"),
        ("SASL_PLAINTEXT", "PLAINTEXT", "if the port expects SASL, set security.protocol=SASL_PLAINTEXT"),
        ("SASL_SSL", "SSL", "if the port expects SASL, set security.protocol=SASL_SSL"),
        ("SSL", "SASL_SSL", "the port expects no SASL: security.protocol=PLAINTEXT or SSL"),
        ("OTHER", "SASL_SSL", "sasl.mechanism is one of PLAIN here"),
        ("SSL", "strange", "ssl.truststore.location names the certificates of trusted authorities"),
        ("demanding", "SSL", "if the port expects a client certificate, set ssl.keystore.location"),
    ],
)
def test_the_commands_name_what_a_listener_expects(
    secured: Secured, demanding: Secured, tmp_path: Path, listener: str, protocol: str, advice: str
) -> None:
    server, port = (demanding, "SSL") if listener == "demanding" else (secured, listener)
    trusted = Authority(tmp_path, "other") if protocol == "strange" else server.authority
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol={protocol.replace('strange', 'SSL')}\nsasl.mechanism=SCRAM-SHA-256\n"
        f"ssl.truststore.location={trusted.certificate}\n"
        'sasl.jaas.config=LoginModule required username="bob" password="pw";\n'
    )
    arguments = ["topics", "list", "-b", f"127.0.0.1:{server.ports[port]}", "--command-config", str(file)]
    done = CliRunner().invoke(korvet, arguments)
    assert done.exit_code == 1
    assert advice in done.output
    assert "in the file that --command-config names" in done.output


def test_javas_tools_make_a_user_and_let_it_work(secured: Secured, java: JavaTools) -> None:
    at = ("--bootstrap-server", f"localhost:{secured.ports['SASL_SSL']}")

    def login(user: str, password: str, mechanism: str, module: str) -> tuple[str, ...]:
        file = secured.folder / f"{user}.properties"
        file.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={secured.authority.certificate}\n"
            f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
        )
        return (*at, "--command-config", str(file))

    admin = login("admin", "secret", "PLAIN", MODULE)
    judy = login("judy", "pw", "SCRAM-SHA-512", SCRAM_MODULE)
    user = ("--entity-type", "users", "--entity-name", "judy")
    for added in ("SCRAM-SHA-512=[password=pw]", "consumer_byte_rate=1048576"):
        java.run("configs", *admin, "--alter", *user, "--add-config", added)
    described = java.run("configs", *admin, "--describe", *user)
    assert "Quota configs for user-principal 'judy' are consumer_byte_rate=1048576.0" in described
    assert "SCRAM credential configs for user-principal 'judy' are SCRAM-SHA-512=iterations=4096" in described
    client = AdminClient(secured.sasl("PLAIN", "admin", "secret"))
    for done in client.create_topics([NewTopic("shared-java", 1, 1)]).values():
        done.result(TIMEOUT_S)
    send = ("console-producer", *judy, "--topic", "shared-java")
    assert "TopicAuthorizationException" in java.attempt(*send, stdin=b"refused\n")
    allow = ("--add", "--allow-principal", "User:judy", "--resource-pattern-type", "prefixed")
    allow += ("--topic", "shared-j")
    made = java.run("acls", *admin, *allow, "--producer")
    assert "principal=User:judy, host=*, operation=WRITE, permissionType=ALLOW" in made
    java.run("acls", *admin, *allow, "--consumer", "--group", "shared-j")
    java.run(*send, stdin=b"one\ntwo\n")
    read = ("console-consumer", *judy, "--topic", "shared-java", "--from-beginning", "--max-messages", "2")
    assert java.run(*read, "--group", "shared-java").split() == ["one", "two"]


def test_a_certificate_can_be_required_but_not_beside_sasl(tmp_path: Path) -> None:
    strict = Secured(tmp_path, "required")
    try:
        strict.server.start()
        certificate = strict.authority.issue("someone", "/O=korvet/CN=someone")
        assert AdminClient(strict.mutual(certificate)).list_topics(timeout=TIMEOUT_S).topics == {}
        with pytest.raises(KafkaException):
            AdminClient(strict.mutual(None)).list_topics(timeout=2)
        admin = strict.sasl("PLAIN", "admin", "secret", tls=True)
        assert AdminClient(admin).list_topics(timeout=TIMEOUT_S).brokers
    finally:
        strict.server.discard()

"""Clients that log in with tokens (OAUTHBEARER): for whom they are, why some are refused, and when they end.

The tokens come from a small OpenID provider, whose keys change while clients run.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from korvet.config.checks import STANDARD_AUTHORIZER
from korvet.config.oauth_settings import LOGIN_MODULE, UNSECURED
from tests.api.asking import authenticating, is_closed
from tests.support.admin import alter_broker
from tests.support.go import BUILD_TIMEOUT_S, GoPrograms
from tests.support.issuer import AUDIENCE, Issuer, SigningKey, claims_of, unsecured
from tests.support.node import NodeTools
from tests.support.pages import Pages
from tests.support.polling import until, until_async
from tests.support.ports import free_port
from tests.support.processes import run
from tests.support.servers import KorvetServer
from tests.support.wire import ConnectionClosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.api.asking import Client
    from tests.support.java import JavaTools

pytestmark = pytest.mark.clients

TIMEOUT_S = 30
# Clients authenticate again in the last tenth or so, for which a busy machine needs most of a second.
SHORT_S = 8.0
# Long enough for one end of a token.
LONGER_S = 1.4 * SHORT_S
REFUSED = '{"status":"invalid_token"}'
PREFIX = "listener.name.sasl_plaintext.oauthbearer.sasl.oauthbearer."


class Guarded:
    """A broker whose clients need tokens of an issuer."""

    def __init__(self, issuer: Issuer, **settings: str) -> None:
        self.issuer = issuer
        self.server = KorvetServer()
        self.port, admin_port = free_port(), free_port()
        self.pages = Pages(admin_port)
        pairs = {
            "listeners": f"PLAINTEXT://{self.server.bootstrap},SASL_PLAINTEXT://127.0.0.1:{self.port}",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{PREFIX}jwks.endpoint.url": f"{issuer.url}/keys",
            f"{PREFIX}expected.issuer": "https://issuer.example",
            f"{PREFIX}expected.audience": AUDIENCE,
            f"{PREFIX}clock.skew.seconds": "0",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:alice;User:ANONYMOUS",
            "admin.listen": f"127.0.0.1:{admin_port}",
        } | settings
        for name, value in pairs.items():
            self.server.options += ["--set", f"{name}={value}"]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def page(self, path: str) -> str:
        """A page of the admin endpoint, whatever its status."""
        return self.pages.read(path).text

    def count(self, name: str) -> int:
        """A counter of the listener."""
        start = f'kafka_server_socket_server_metrics_{name}_total{{listener="SASL_PLAINTEXT"}} '
        found = (line for line in self.page("/metrics").splitlines() if line.startswith(start))
        # A listener without connections has no line.
        return sum(int(line.removeprefix(start)) for line in found)

    def logged(self, text: str) -> int:
        """How often the log has a text."""
        return self.server.tail(10**7).count(text)

    def librdkafka(self, token: Callable[[], str] | None = None, **others: Any) -> dict[str, Any]:
        """A configuration of librdkafka; `token` makes the tokens, which it replaces early: a session with
        the rest of an old one would be too short to be renewed.
        """
        found = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
        }
        if token is not None:
            found["oauth_cb"] = lambda _: (token(), time.time() + self.issuer.lifetime_s / 4)
        return found | others

    def topic(self, name: str) -> str:
        """A new topic."""
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
        for done in admin.create_topics([NewTopic(name, 1, 1)]).values():
            done.result(TIMEOUT_S)
        return name


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Issuer() as issuer:
        found = Guarded(issuer)
        with found.server:
            yield found


@pytest.fixture
def short_lived(guarded: Guarded) -> Iterator[Guarded]:
    """The same, with tokens that live for seconds."""
    guarded.issuer.lifetime_s = SHORT_S
    yield guarded
    guarded.issuer.lifetime_s = 300.0


def send_for(lasts_s: float, send: Callable[[int], None]) -> int:
    """Call `send` for that time; returns the number of calls."""
    end_s, sent = time.monotonic() + lasts_s, 0

    def over() -> bool:
        nonlocal sent
        send(sent)
        sent += 1
        return time.monotonic() > end_s

    until(over, TIMEOUT_S, "the time is over")
    return sent


def librdkafka_session(conf: dict[str, Any], topic: str, lasts_s: float) -> int:
    """Produce for a time, and read it back in a group; returns the number of records."""
    producer = Producer(conf)
    failures: list[Any] = []

    def send(number: int) -> None:
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(TIMEOUT_S) == 0

    sent = send_for(lasts_s, send)
    assert failures == [None] * sent
    consumer = Consumer({**conf, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found: set[bytes | None] = set()

        def read() -> bool:
            message = consumer.poll(0.5)
            if message is not None:
                assert message.error() is None, message.error()
                found.add(message.value())
            return len(found) == sent

        until(read, TIMEOUT_S, "all records are read")
    finally:
        consumer.close()
    return sent


def librdkafka_refusal(conf: dict[str, Any]) -> str:
    """The error of a client that is refused."""
    errors: list[KafkaError] = []
    admin = AdminClient({**conf, "error_cb": errors.append, "log_level": 0})

    def refused() -> str:
        admin.poll(0.1)
        return next((each.str() for each in errors if each.code() == KafkaError._AUTHENTICATION), "")

    return until(refused, TIMEOUT_S, "the client is refused")


@pytest.mark.short
def test_librdkafka_logs_in_with_a_token(guarded: Guarded) -> None:
    topic = guarded.topic("callback")
    assert librdkafka_session(guarded.librdkafka(lambda: guarded.issuer.token("alice")), topic, 0) == 1


def test_the_user_of_the_token_is_who_acls_are_for(guarded: Guarded) -> None:
    guarded.topic("acls")
    for user, seen in (("alice", True), ("bob", False)):
        admin = AdminClient(guarded.librdkafka(lambda user=user: guarded.issuer.token(user)))
        admin.poll(1)
        assert ("acls" in admin.list_topics(timeout=TIMEOUT_S).topics) is seen


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "other"}, f"the audience of the token is 'other', not ['{AUDIENCE}']"),
        ({"exp": -5, "iat": -50}, "the token expired at "),
        ({"iss": "https://other.example"}, "the issuer of the token is 'https://other.example'"),
        ({"nbf": 200}, "the token is not valid before "),
    ],
    ids=["audience", "expired", "issuer", "early"],
)
def test_why_a_token_is_refused_is_told_to_the_log_only(
    guarded: Guarded, claims: dict[str, Any], reason: str
) -> None:
    """The numbers in `claims` are seconds from now."""
    user = f"mallory-{reason.split()[1]}-{len(reason)}"
    now = time.time()
    made = {name: now + value if isinstance(value, int) else value for name, value in claims.items()}
    error = librdkafka_refusal(guarded.librdkafka(lambda: guarded.issuer.token(user, **made)))
    assert REFUSED in error
    line = f"User:{user} at 127.0.0.1 cannot log in: {reason}"
    until(lambda: guarded.logged(line), TIMEOUT_S, "the refusal is logged")
    (found,) = (each for each in guarded.server.tail(10**7).splitlines() if line in each)
    assert f"(OAUTHBEARER, listener SASL_PLAINTEXT, port {guarded.port}, client software confluent" in found
    assert reason not in error


def test_forged_tokens_are_refused(guarded: Guarded) -> None:
    """Signed with another key of the same ID, and not signed."""
    claims = claims_of("alice", iss="https://issuer.example")
    for forged in (SigningKey("ES256", guarded.issuer.key.name).sign(claims), unsecured(claims)):
        assert REFUSED in librdkafka_refusal(guarded.librdkafka(lambda forged=forged: forged))


def test_librdkafka_gets_its_tokens_by_openid(guarded: Guarded) -> None:
    conf = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": "secret",
        "sasl.oauthbearer.token.endpoint.url": f"{guarded.issuer.url}/token",
    }
    assert librdkafka_session(guarded.librdkafka(**conf), guarded.topic("openid"), 0) == 1


def test_librdkafka_goes_on_when_its_token_ends(short_lived: Guarded) -> None:
    """KIP-368: it authenticates again, over the same connections."""
    over, again = short_lived.logged("session is over"), short_lived.count("successful_reauthentication")
    conf = short_lived.librdkafka(lambda: short_lived.issuer.token("alice"))
    librdkafka_session(conf, short_lived.topic("librdkafka-long"), LONGER_S)
    assert short_lived.count("successful_reauthentication") > again
    assert short_lived.logged("session is over") == over


def test_java_logs_in_by_openid_and_goes_on_when_its_token_ends(
    short_lived: Guarded, java: JavaTools
) -> None:
    over, again = short_lived.logged("session is over"), short_lived.count("successful_reauthentication")
    at = (short_lived.bootstrap, f"{short_lived.issuer.url}/token")
    lasts_ms = str(int(1000 * LONGER_S))
    sent = java.run("BearerSession", *at, "alice", short_lived.topic("java-long"), lasts_ms)
    assert int(sent) > 1
    assert short_lived.count("successful_reauthentication") > again
    assert short_lived.logged("session is over") == over


def test_java_is_told_that_its_token_is_refused(guarded: Guarded, java: JavaTools) -> None:
    guarded.issuer.claims = {"aud": "other"}
    try:
        at = (guarded.bootstrap, f"{guarded.issuer.url}/token")
        said = java.run("BearerSession", *at, "alice", guarded.topic("java-refused"), "0")
    finally:
        guarded.issuer.claims = {}
    assert said.strip() == f"SaslAuthenticationException: {REFUSED}"


class AsyncTokens(AsyncTokenProvider):
    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    async def token(self) -> str:
        return self._make()


@pytest.mark.short
async def test_aiokafka_logs_in_and_goes_on_when_its_token_ends(short_lived: Guarded) -> None:
    """It doesn't authenticate again, but connects again when a session is over."""
    topic = short_lived.topic("aiokafka")

    def producer(**claims: Any) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            bootstrap_servers=short_lived.bootstrap,
            request_timeout_ms=4000,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=AsyncTokens(lambda: short_lived.issuer.token("alice", **claims)),
        )

    async with producer() as sending:
        end_s = time.monotonic() + LONGER_S

        async def over() -> bool:
            await sending.send_and_wait(topic, b"x")
            return time.monotonic() > end_s

        await until_async(over, TIMEOUT_S, "records are sent for longer than a token lives")
    # It takes the answer for a success, and learns of no broker.
    with pytest.raises(AioKafkaError):
        async with producer(aud="other", sub="aiokafka") as refused:
            await refused.send_and_wait(topic, b"x")
    assert short_lived.logged("User:aiokafka at 127.0.0.1 cannot log in: the audience of the token") == 1


class Tokens(AbstractTokenProvider):
    def __init__(self, make: Callable[[], str]) -> None:
        super().__init__()
        self._make = make

    def token(self) -> str:
        return self._make()


# A client that is refused: in a process of its own, because it leaves sockets open. It drops the answer when
# the connection ends.
KAFKA_PYTHON = """
import sys
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

class Tokens(AbstractTokenProvider):
    def token(self):
        return sys.argv[2]

KafkaProducer(
    bootstrap_servers=sys.argv[1], security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
    sasl_oauth_token_provider=Tokens(), bootstrap_timeout_ms=2000,
)
"""


def test_kafka_python_logs_in_and_goes_on_when_its_token_ends(short_lived: Guarded) -> None:
    topic = short_lived.topic("kafka-python")
    over, again = short_lived.logged("session is over"), short_lived.count("successful_reauthentication")

    sending = KafkaProducer(
        bootstrap_servers=short_lived.bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(lambda: short_lived.issuer.token("alice")),
    )
    send_for(LONGER_S, lambda number: sending.send(topic, b"%d" % number).get(TIMEOUT_S))
    sending.close()
    assert short_lived.count("successful_reauthentication") > again
    assert short_lived.logged("session is over") == over
    token = short_lived.issuer.token("kafka-python", aud="other")
    refused = run([sys.executable, "-c", KAFKA_PYTHON, short_lived.bootstrap, token], 2 * TIMEOUT_S)
    assert b"KafkaTimeoutError: Unable to bootstrap" in refused.stderr
    assert short_lived.logged("User:kafka-python at 127.0.0.1 cannot log in: the audience of the token") == 1


class Written:
    """A token in a file, which is replaced while it is read."""

    def __init__(self, file: Path, make: Callable[[], str]) -> None:
        self.file = file
        self._make = make
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _write(self) -> None:
        partial = self.file.with_suffix(".part")
        partial.write_text(self._make())
        partial.rename(self.file)

    def _run(self) -> None:
        while not self._end.wait(0.2):
            self._write()

    def __enter__(self) -> Path:
        self._write()
        self._thread.start()
        return self.file

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@pytest.mark.parametrize(
    "client",
    [
        "kafkajs",
        pytest.param("franz-go", marks=[pytest.mark.long, pytest.mark.timeout(2 * BUILD_TIMEOUT_S + 120)]),
    ],
)
def test_clients_with_a_token_in_a_file_go_on_when_it_ends(
    short_lived: Guarded, tmp_path: Path, client: str
) -> None:
    if client == "kafkajs":
        program = partial(NodeTools.resolve().run, "bearer.js")
    else:
        program = partial(GoPrograms.build().run, "bearer")
    over, again = short_lived.logged("session is over"), short_lived.count("successful_reauthentication")
    arguments = {"bootstrap": short_lived.bootstrap, "topic": short_lived.topic(client)}
    with Written(tmp_path / "token", lambda: short_lived.issuer.token("alice")) as file:
        lasts = {"file": str(file), "lasts_ms": int(1000 * LONGER_S)}
        answer = program(arguments | lasts)
    assert answer["sent"] > 1
    assert short_lived.count("successful_reauthentication") > again
    assert short_lived.logged("session is over") == over
    file.write_text(short_lived.issuer.token(client, aud="other"))
    assert program(arguments | lasts)["error"]
    assert short_lived.logged(f"User:{client} at 127.0.0.1 cannot log in: the audience of the token") == 1


def test_keys_change_while_clients_run(short_lived: Guarded) -> None:
    """A running client logs in again with a token of the new key, and so does a new one."""
    topic = short_lived.topic("rotation")
    over = short_lived.logged("session is over")
    producer = Producer(short_lived.librdkafka(lambda: short_lived.issuer.token("alice")))
    failures: list[Any] = []

    def send(number: int) -> None:
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(TIMEOUT_S) == 0

    send(0)
    for key in (SigningKey("RS256", "rotated-rsa"), SigningKey("EdDSA", "rotated-ed25519")):
        short_lived.issuer.rotate(key)
        send_for(LONGER_S, send)
        again = AdminClient(short_lived.librdkafka(lambda: short_lived.issuer.token("alice")))
        again.poll(1)
        assert topic in again.list_topics(timeout=TIMEOUT_S).topics
        assert short_lived.logged(f"takes tokens signed with 1 keys ({key.name})") == 1
    assert set(failures) == {None}
    assert short_lived.logged("session is over") == over


def raw_client(guarded: Guarded, token: str) -> AbstractContextManager[tuple[Client, Any]]:
    """A connection that has sent a token, and the answer."""
    return authenticating(guarded.port, "OAUTHBEARER", f"n,,\x01auth=Bearer {token}\x01\x01".encode())


def test_the_answers_to_a_refused_token(guarded: Guarded) -> None:
    with raw_client(guarded, guarded.issuer.token("alice", aud="other")) as (client, answer):
        assert (answer.error_code, answer.auth_bytes) == (0, REFUSED.encode())
        failure = client("SaslAuthenticate", 2, auth_bytes=b"\x01")
        assert (failure.error_code, failure.error_message) == (58, REFUSED)
        with pytest.raises((ConnectionClosed, OSError)):
            client("Metadata", 12, topics=None)
    with raw_client(guarded, "not-a.jwt") as (client, answer):
        assert answer.auth_bytes == REFUSED.encode()
        # Clients that take the answer for a success learn that it is none.
        untimely = client("Heartbeat", 4, group_id="shared", member_id="m", generation_id=1)
        assert untimely.error_code == 34


def test_a_session_ends_with_its_token(guarded: Guarded) -> None:
    # A busy machine may take seconds to send the token.
    lifetime_s = 5.0
    token = guarded.issuer.key.sign(claims_of("alice", lifetime_s))
    with raw_client(guarded, token) as (client, answer):
        assert 0 < answer.session_lifetime.total_seconds() <= lifetime_s
        until(partial(is_closed, client), TIMEOUT_S, "the session is over")
    assert guarded.logged("its session is over and it did not authenticate again")


def test_a_broker_without_keys_is_not_ready_and_refuses_nobody_for_good() -> None:
    with Issuer() as issuer:
        issuer.status = 503
        found = Guarded(issuer)
        with found.server:
            problem = f"{issuer.url}/keys: HTTP status 503"
            missing = f"keys: listener SASL_PLAINTEXT has no keys for tokens: {problem}"
            until(lambda: missing in found.page("/readyz").splitlines(), TIMEOUT_S, "it is not ready")
            assert 'korvet_token_keys_fresh{listener="SASL_PLAINTEXT"} 0' in found.page("/metrics")
            findings = found.pages.status()["findings"]
            assert [each["state"] for each in findings if each["subject"] == "tokens, SASL_PLAINTEXT"] == [
                "fault"
            ]
            with pytest.raises(KafkaException):
                AdminClient(found.librdkafka(lambda: issuer.token("alice"), log_level=0)).list_topics(
                    timeout=2
                )
            assert found.logged(f"cannot log in: the keys for its token are not there: {problem}") == 1
            admin = AdminClient(found.librdkafka(lambda: issuer.token("alice"), log_level=0))
            issuer.status = 200
            admin.poll(1)
            assert admin.list_topics(timeout=TIMEOUT_S).brokers
            until(lambda: "keys: ok" in found.page("/readyz").splitlines(), TIMEOUT_S, "it is ready")
            issuer.status = 503
            issuer.key = SigningKey("ES256", "unpublished")
            with pytest.raises((ConnectionClosed, OSError)), raw_client(found, issuer.token("alice")):
                pass
            stale = f"keys: ok, but listener SASL_PLAINTEXT keeps older keys for tokens: {problem}"
            until(lambda: stale in found.page("/readyz").splitlines(), TIMEOUT_S, "it keeps the keys")


def test_a_listener_without_tokens_needs_no_keys() -> None:
    """OAUTHBEARER is removed while the broker runs, and comes back. What tokens need doesn't change so."""
    with Issuer() as issuer:
        issuer.status = 503
        found = Guarded(issuer, **{f"{PREFIX}jwks.endpoint.retry.backoff.max.ms": "100"})
        with found.server:
            alter = partial(alter_broker, found.server.bootstrap, 1)

            def keys() -> str:
                (line,) = (each for each in found.page("/readyz").splitlines() if each.startswith("keys: "))
                return line

            until(lambda: "HTTP status 503" in keys(), TIMEOUT_S, "keys are missing")
            alter({"sasl.enabled.mechanisms": "PLAIN"})
            until(lambda: keys() == "keys: ok", TIMEOUT_S, "no keys are needed")
            assert 'korvet_token_keys_fresh{listener="SASL_PLAINTEXT"}' not in found.page("/metrics")
            assert "tokens, SASL_PLAINTEXT" not in {
                each["subject"] for each in found.pages.status()["findings"]
            }
            fetches = issuer.fetches
            alter({"sasl.enabled.mechanisms": "OAUTHBEARER"})
            until(lambda: issuer.fetches > fetches + 1, TIMEOUT_S, "keys are fetched again")
            assert "HTTP status 503" in keys()
            issuer.status = 200
            until(lambda: keys() == "keys: ok", TIMEOUT_S, "there are keys")
            with pytest.raises(KafkaException, match="Cannot update these configs dynamically"):
                alter({f"{PREFIX}expected.audience": "other"})


def test_kafkas_unsecured_tokens_are_for_tests(tmp_path: Path) -> None:
    """With Kafka's setting; the log and the status warn. Librdkafka makes such tokens itself."""
    with Issuer() as issuer:
        config = f'{LOGIN_MODULE} required unsecuredValidatorRequiredScope="kafka";'
        found = Guarded(
            issuer,
            **{
                "oauthbearer.sasl.server.callback.handler.class": UNSECURED,
                "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": config,
            },
        )
        with found.server:
            conf = {"enable.sasl.oauthbearer.unsecure.jwt": True}
            good = found.librdkafka(**conf, **{"sasl.oauthbearer.config": "principal=alice scope=kafka"})
            assert librdkafka_session(good, found.topic("unsecured"), 0) == 1
            lacking = found.librdkafka(**conf, **{"sasl.oauthbearer.config": "principal=alice"})
            assert '{"status":"insufficient_scope","scope":"kafka"}' in librdkafka_refusal(lacking)
            assert found.logged("listener SASL_PLAINTEXT takes tokens without signatures") == 1
            findings = found.pages.status()["findings"]
            (finding,) = (each for each in findings if each["subject"] == "tokens, SASL_PLAINTEXT")
            assert finding["state"] == "warning"
            assert issuer.fetches == 0

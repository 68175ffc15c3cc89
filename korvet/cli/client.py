"""A small blocking Kafka client for the commands: one connection per broker, one request at a time.

It uses one version of each API, which Kafka since 2.8 and korvet support. If a broker doesn't offer the
version (by its ApiVersions response), a ClientError names the API.
"""

import io
import selectors
import socket
import ssl
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import kio.schema.api_versions.v0 as api_versions
import kio.schema.find_coordinator.v3 as find_coordinator
import kio.schema.metadata.v12 as metadata
import kio.schema.sasl_authenticate.v2 as sasl_authenticate
import kio.schema.sasl_handshake.v1 as sasl_handshake
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponseTopic
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i32
from kio.static.protocol import RequestPayload, ResponsePayload

from korvet.cli.security import COMMAND_CONFIG, ClientSecurity
from korvet.config.address import Address, parse_address
from korvet.security.errors import InvalidCredentials

CLIENT_ID = "korvet-cli"
PLAIN_TEXT = ClientSecurity()
TIMEOUT_S = 30.0
# The first bytes of a TLS alert: what a server of TLS answers to plain text.
_TLS_ALERT = b"\x15\x03"
# Limits the size of a response. No request has a larger one, so the peer doesn't speak Kafka's protocol.
_LARGEST_RESPONSE = 256 * 1024 * 1024
# The number of a connection's first request, ApiVersions.
_FIRST = 1
_IN_FILE = f"in the file that {COMMAND_CONFIG} names"
Response = TypeVar("Response", bound=ResponsePayload)


class Bootstrap(NamedTuple):
    """Where a cluster is reached: a list of HOST:PORT, separated by commas, and how."""

    servers: str
    security: ClientSecurity = PLAIN_TEXT


class CoordinatorKind(IntEnum):
    """What a coordinator coordinates; numbers of FindCoordinator."""

    GROUP = 0
    TRANSACTIONAL_ID = 1


class ClientError(Exception):
    """A broker is unreachable or refuses a request.

    The message is for the user; `code` is Kafka's, if any.
    """

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class BrokerConnection:
    """One connection to one broker."""

    def __init__(
        self, address: Address, timeout_s: float = TIMEOUT_S, security: ClientSecurity = PLAIN_TEXT
    ) -> None:
        self.address = address
        self._security = security
        self._correlation = 0
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise ClientError(f"no broker answers on {address}: {error.strerror or error}") from error
        if security.tls is not None:
            self._encrypt(security.tls)
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            offered = self._exchange(api_versions.ApiVersionsRequest(), api_versions.ApiVersionsResponse)
            check(offered.error_code, f"{address}")
            if security.mechanism is not None:
                self._authenticate(security, security.mechanism)
        except ClientError:
            self.close()
            raise
        self._versions = {key.api_key: (key.min_version, key.max_version) for key in offered.api_keys}

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def has_ended(self) -> bool:
        """Whether the broker has closed the connection since its last answer."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            # No answer is due, so there is nothing to read but the end.
            return bool(selector.select(0))

    def ask(self, request: RequestPayload, kind: type[Response]) -> Response:
        """Send a request and read its response. Raises ClientError."""
        if not self.offers(type(request)):
            name = type(request).__name__.removesuffix("Request")
            raise ClientError(
                f"the broker on {self.address} does not offer {name} version {request.__version__}"
            )
        return self._exchange(request, kind)

    def offers(self, request: type[RequestPayload]) -> bool:
        """Whether the broker offers the version of a request."""
        lowest, highest = self._versions.get(request.__api_key__, (0, -1))
        return lowest <= request.__version__ <= highest

    def _encrypt(self, tls: ssl.SSLContext) -> None:
        plain = self._socket
        try:
            self._socket = tls.wrap_socket(plain, server_hostname=self.address.host)
        except OSError as error:
            plain.close()
            advice = "the port may expect plain text (security.protocol=PLAINTEXT or SASL_PLAINTEXT)"
            if isinstance(error, ssl.SSLCertVerificationError):
                advice = "ssl.truststore.location names the certificates of trusted authorities"
            raise ClientError(f"no TLS with {self.address}: {error}; {advice}, {_IN_FILE}") from error

    def _authenticate(self, security: ClientSecurity, mechanism: str) -> None:
        chosen = self._exchange(
            sasl_handshake.SaslHandshakeRequest(mechanism=mechanism), sasl_handshake.SaslHandshakeResponse
        )
        advice = None
        if chosen.error_code is ErrorCode.illegal_sasl_state:
            advice = f"the port expects no SASL: security.protocol=PLAINTEXT or SSL, {_IN_FILE}"
        elif chosen.error_code is ErrorCode.unsupported_sasl_mechanism:
            advice = f"sasl.mechanism is one of {', '.join(chosen.mechanisms)} here, {_IN_FILE}"
        check(chosen.error_code, f"{self.address}", advice)
        client = security.client()
        token = client.first()
        try:
            while not client.complete:
                answer = self._exchange(
                    sasl_authenticate.SaslAuthenticateRequest(auth_bytes=token),
                    sasl_authenticate.SaslAuthenticateResponse,
                )
                check(answer.error_code, f"{self.address}", answer.error_message)
                token = client.answer(answer.auth_bytes)
        except InvalidCredentials as error:
            raise ClientError(f"{self.address}: {error}") from error

    def _exchange(self, request: RequestPayload, kind: type[Response]) -> Response:
        self._correlation += 1
        frame = io.BytesIO()
        header: type[Any] = request.__header_schema__
        fields = {
            "request_api_key": request.__api_key__,
            "request_api_version": request.__version__,
            "correlation_id": i32(self._correlation),
            "client_id": CLIENT_ID,
        }
        entity_writer(header)(frame, header(**fields))
        try:
            entity_writer(type(request))(frame, request)
        except UnicodeEncodeError as error:
            raise ClientError(f"{error.object!r} is not UTF-8") from error
        body = frame.getvalue()
        try:
            self._socket.sendall(struct.pack(">i", len(body)) + body)
            answer = self._receive()
        except OSError as error:
            raise ClientError(
                f"the broker on {self.address} does not answer: {error.strerror or error}{self._advice()}"
            ) from error
        head, size = entity_reader(kind.__header_schema__)(answer, 0)
        if head.correlation_id != self._correlation:
            raise ClientError(f"the broker on {self.address} answered out of order")
        response, _ = entity_reader(kind)(answer, size)
        return response

    def _receive(self) -> bytes:
        head = self._read(4)
        if head.startswith(_TLS_ALERT):
            raise ClientError(f"the server on {self.address} speaks TLS{self._advice()}")
        (size,) = struct.unpack(">i", head)
        if not 4 <= size <= _LARGEST_RESPONSE:
            raise ClientError(f"the server on {self.address} does not speak Kafka's protocol")
        return self._read(size)

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(min(size - len(parts), 1 << 20))
            except ConnectionResetError:
                # The broker closed the connection before it had read the whole request.
                part = b""
            if not part:
                raise ClientError(f"the broker on {self.address} closed the connection{self._advice()}")
            parts += part
        return bytes(parts)

    def _advice(self) -> str:
        """Returns what may be wrong with the security settings if one of the first two requests fails.

        Servers do not say it: one of TLS closes a connection whose first bytes are not TLS, or waits for
        more, and a broker with SASL closes it after the first request besides ApiVersions.
        """
        if self._correlation == _FIRST and self._security.tls is None:
            return f": if the port expects TLS, set security.protocol=SSL or SASL_SSL {_IN_FILE}"
        if self._correlation == _FIRST:
            return f": if the port expects a client certificate, set ssl.keystore.location {_IN_FILE}"
        if self._correlation == _FIRST + 1 and self._security.mechanism is None:
            protocol = "SASL_PLAINTEXT" if self._security.tls is None else "SASL_SSL"
            return (
                f": if the port expects SASL, set security.protocol={protocol}, sasl.mechanism and "
                f"sasl.jaas.config {_IN_FILE}"
            )
        return ""


def check(code: ErrorCode | int, subject: str, message: str | None = None) -> None:
    """Raise ClientError unless `code` is NONE. `subject` names the topic, group or broker in the message."""
    error = error_of(code, subject, message)
    if error is not None:
        raise error


def error_of(code: ErrorCode | int, subject: str, message: str | None = None) -> ClientError | None:
    """Returns what `check` raises, for results of which some may be errors."""
    code = ErrorCode(code)
    if code is ErrorCode.none:
        return None
    text = message or (code.__doc__ or "").strip() or code.name.replace("_", " ")
    return ClientError(f"{subject}: {text} ({code.name.upper()})", code)


class Cluster:
    """A Kafka cluster, found by bootstrap addresses. Each request goes to the broker that can answer it."""

    def __init__(self, bootstrap: Bootstrap | str, timeout_s: float = TIMEOUT_S) -> None:
        """A text stands for a Bootstrap in plain text. Raises ClientError."""
        servers, self._security = Bootstrap(bootstrap) if isinstance(bootstrap, str) else bootstrap
        try:
            self._bootstraps = tuple(parse_address(each.strip()) for each in servers.split(","))
        except ValueError as error:
            raise ClientError(f"--bootstrap-server: {error}") from error
        self._timeout_s = timeout_s
        self._connections: dict[Address, BrokerConnection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()

    def ask(self, request: RequestPayload, kind: type[Response], broker: Address | None = None) -> Response:
        """Send a request to a broker, by default the bootstrap broker. Raises ClientError."""
        connection = self._bootstrap() if broker is None else self._connection(broker)
        return connection.ask(request, kind)

    def offers(self, request: type[RequestPayload], broker: Address) -> bool:
        """Whether a broker offers the version of a request. Raises ClientError."""
        return self._connection(broker).offers(request)

    def _bootstrap(self) -> BrokerConnection:
        """The connection to the first bootstrap address on which a broker answers."""
        refused = []
        for address in self._bootstraps:
            try:
                return self._connection(address)
            except ClientError as error:
                refused.append(error)
        if len(refused) == 1:
            raise refused[0]
        raise ClientError("; ".join(map(str, refused)))

    def _connection(self, address: Address) -> BrokerConnection:
        known = self._connections.get(address)
        if known is not None and known.has_ended():
            # Brokers close idle connections (connections.max.idle.ms).
            self._connections.pop(address).close()
        if address not in self._connections:
            self._connections[address] = BrokerConnection(address, self._timeout_s, self._security)
        return self._connections[address]

    def metadata(
        self, topics: Sequence[str] | None = None, broker: Address | None = None
    ) -> metadata.MetadataResponse:
        """Request metadata of the brokers and of all or the named topics, by default from the bootstrap
        broker. Never creates a topic.
        """
        named = None
        if topics is not None:
            named = tuple(MetadataRequestTopic(name=TopicName(topic), topic_id=None) for topic in topics)
        request = metadata.MetadataRequest(
            topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        return self.ask(request, metadata.MetadataResponse, broker)

    def topic(self, name: str, broker: Address | None = None) -> MetadataResponseTopic:
        """Returns one topic's metadata, by default from the bootstrap broker. Raises ClientError if the topic
        doesn't exist.
        """
        (topic,) = self.metadata([name], broker).topics
        check(topic.error_code, name)
        return topic

    def leaders(self, topic: str, partitions: Iterable[int]) -> dict[Address, list[int]]:
        """Returns the given partitions, grouped by the address of their leader."""
        answer = self.metadata([topic])
        addresses = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        (described,) = answer.topics
        check(described.error_code, topic)
        states = {int(state.partition_index): state for state in described.partitions}
        led: dict[Address, list[int]] = defaultdict(list)
        for partition in partitions:
            state = states.get(partition)
            if state is None:
                raise ClientError(f"{topic} has no partition {partition}")
            check(state.error_code, f"{topic} partition {partition}")
            led[addresses[state.leader_id]].append(partition)
        return led

    def coordinator(self, key: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> Address:
        """Returns the address of the broker that coordinates a group or a transactional ID
        (FindCoordinator).
        """
        request = find_coordinator.FindCoordinatorRequest(key=key, key_type=i8(kind))
        found = self.ask(request, find_coordinator.FindCoordinatorResponse)
        check(found.error_code, f"{kind.name.lower().replace('_', ' ')} {key}", found.error_message)
        return Address(found.host, found.port)

    def brokers(self) -> list[Address]:
        """Returns the addresses of all brokers."""
        return [Address(broker.host, broker.port) for broker in self.metadata([]).brokers]

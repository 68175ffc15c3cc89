"""Why a Kafka client gets no answer: a look at the ports of its bootstrap servers, in some milliseconds.

A client that speaks plaintext to a TLS port, or that doesn't log in, is disconnected without a word, tries
again, and reports a time-out.
"""

from __future__ import annotations

import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import TYPE_CHECKING, Final

from korvet.spark.session.command_config import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TIMEOUT_S: Final = 5.0
# The longest time that likely_cause takes: that of a server which is silent three times.
LONGEST_S: Final = 15.0
_MOST_AT_ONCE: Final = 100
_LAST_PORT: Final = 65_535
# Request headers (v1) without client ID: API key, version, correlation ID.
_API_VERSIONS: Final = struct.pack(">hhih", 18, 0, 1, -1)
# Of no topic: the answer names all brokers.
_METADATA: Final = struct.pack(">hhihi", 3, 1, 2, -1, 0)
# No answer of Kafka is longer here, even of a thousand brokers.
_MOST_BYTES: Final = 1 << 20
_CORRELATION_BYTES: Final = 4
_BROKEN: Final = (OSError, EOFError, UnicodeError, struct.error)


def likely_cause(bootstrap: str, properties: Mapping[str, str]) -> str | None:
    """Return why none of the bootstrap servers is of use to a client with these properties.

    None if one is, or if the reason isn't known after LONGEST_S.
    """
    protocol = properties.get(PROTOCOL, "PLAINTEXT").upper()
    looks = []
    for server in bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or int(port) > _LAST_PORT:
            # The error of the Kafka client itself says which address is malformed.
            return None
        looks.append(partial(_cause, host.strip("[]"), int(port), protocol))
    return _cause_of_all(looks)


def _cause_of_all(looks: Sequence[Callable[[], str | None]]) -> str | None:
    """Return the first cause if every look finds one.

    The looks run side by side. Returns None as soon as one of them finds no cause, and after LONGEST_S.
    """
    pool = ThreadPoolExecutor(_MOST_AT_ONCE)
    begun = [pool.submit(look) for look in looks]
    try:
        if any(each.result() is None for each in as_completed(begun, LONGEST_S)):
            return None
    except TimeoutError:
        return None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return begun[0].result()


def _cause(host: str, port: int, protocol: str) -> str | None:
    where = f"{host}:{port}"
    unreachable = _unreachable(host, port)
    if unreachable is not None:
        return unreachable
    uses_tls, logs_in = protocol.endswith("SSL"), protocol.startswith("SASL")
    if uses_tls:
        if not _speaks_tls(host, port) and _answers(host, port):
            return f"{where} does not speak TLS: {PROTOCOL} {protocol} is wrong for it"
        return None
    if not _answers(host, port):
        if _speaks_tls(host, port):
            kind = "SASL_SSL" if logs_in else "SSL or SASL_SSL"
            return f"{where} speaks TLS: set {PROTOCOL} to {kind} in the file of --command-config"
        return None
    if logs_in:
        return None
    brokers = _brokers(host, port)
    if brokers is None:
        return (
            f"{where} wants a login (or is the port of a controller): set {PROTOCOL} to SASL_PLAINTEXT, "
            "sasl.mechanism and sasl.jaas.config in the file of --command-config"
        )
    away = _cause_of_all([partial(_unreachable, *broker) for broker in brokers]) if brokers else None
    if away is None:
        return None
    return f"{where} names brokers (advertised.listeners) that this machine can't reach: {away}"


def _unreachable(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except (socket.gaierror, UnicodeError):
        # Python itself refuses a name with an empty or a long label.
        return f"the host {host} is unknown"
    except OSError as error:
        return f"{host}:{port}: {error.strerror or 'no connection'}"
    return None


def _speaks_tls(host: str, port: int) -> bool:
    """Whether a port answers a handshake, with whatever certificate or demand."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLError as error:
        # A TLS alert is the answer of a port that speaks TLS. Other errors: what came back is no TLS.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


def _answers(host: str, port: int) -> bool:
    """Whether a port answers ApiVersions in plaintext."""
    try:
        _asked(host, port, _API_VERSIONS)
    except _BROKEN:
        return False
    return True


def _brokers(host: str, port: int) -> list[tuple[str, int]] | None:
    """The brokers of the cluster by a port in plaintext; None if it wants a login first."""
    try:
        return _parsed(_asked(host, port, _METADATA))
    except _BROKEN:
        return None


def _asked(host: str, port: int, request: bytes) -> bytes:
    """The answer to a request, without its size. Raises one of _BROKEN if Kafka does not answer."""
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        # The beginning of another protocol, such as an alert of TLS, is a size of gigabytes.
        if not 0 <= size <= _MOST_BYTES:
            raise EOFError
        return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _parsed(answer: bytes) -> list[tuple[str, int]]:
    """The hosts and ports in an answer to Metadata v1."""
    position = _CORRELATION_BYTES
    (count,) = struct.unpack_from(">i", answer, position)
    position += 4
    brokers = []
    for _ in range(count):
        position += 4
        host, position = _string(answer, position)
        (port,) = struct.unpack_from(">i", answer, position)
        _, position = _string(answer, position + 4)
        brokers.append((host, port))
    return brokers


def _string(answer: bytes, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", answer, position)
    end = position + 2 + max(0, size)
    return answer[position + 2 : end].decode(), end

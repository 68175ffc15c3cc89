"""Listeners as in Kafka: `listeners`, `advertised.listeners`, `listener.security.protocol.map`."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_ENDPOINT: Final = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)://(?P<host>\[[0-9a-fA-F:.%]+\]|[^/\[\]:,]*):(?P<port>\d{1,5})"
)


class Endpoint(NamedTuple):
    """A listener's name with a host and a TCP port; an empty host means every address."""

    name: str
    host: str
    port: int


class ListenerSpec(NamedTuple):
    """One listener: its address, its advertised address, and its security protocol."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol
    advertised: Endpoint | None

    @property
    def encrypted(self) -> bool:
        """Whether the listener uses TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def authenticates(self) -> bool:
        """Whether clients must authenticate by SASL."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def is_unspecified(host: str) -> bool:
    """Whether a host means every address of the machine: it is empty, 0.0.0.0 or ::, however written."""
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return False


def check_advertised(host: str, port: int) -> None:
    """Raises ValueError for an address that clients cannot connect to."""
    if not host:
        raise ValueError("clients cannot connect to an address without a host")
    if is_unspecified(host):
        raise ValueError(f"clients cannot connect to the nonroutable meta-address {host}")
    if port == 0:
        raise ValueError("clients cannot connect to port 0")


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Parse `NAME://HOST:PORT,...`; names become upper case. Raises ValueError."""
    endpoints = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _ENDPOINT.fullmatch(part)
        if found is None or int(found["port"]) > 65535:
            raise ValueError(f"expected NAME://HOST:PORT, not {part!r}")
        endpoints.append(Endpoint(found["name"].upper(), found["host"].strip("[]"), int(found["port"])))
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ValueError(f"each listener must have a different name: {text}")
    return tuple(endpoints)


def parse_protocol_map(text: str) -> Mapping[str, SecurityProtocol]:
    """Parse `NAME:PROTOCOL,...`; a name that is absent is itself a protocol. Raises ValueError."""
    protocols: dict[str, SecurityProtocol] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = part.partition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not _NAME.fullmatch(name) or protocol not in PROTOCOLS:
            raise ValueError(
                f"expected NAME:PROTOCOL with a protocol of {', '.join(PROTOCOLS)}, not {part!r}"
            )
        if name in protocols:
            raise ValueError(f"listener {name} is mapped twice")
        protocols[name] = cast("SecurityProtocol", protocol)
    return protocols


def listeners(
    listening: tuple[Endpoint, ...],
    advertised: tuple[Endpoint, ...],
    protocols: Mapping[str, SecurityProtocol],
) -> tuple[ListenerSpec, ...]:
    """Combine the three settings. Raises ValueError if they contradict each other."""
    if not listening:
        raise ValueError("there is no listener")
    told = {endpoint.name: endpoint for endpoint in advertised}
    unknown = sorted(told.keys() - {endpoint.name for endpoint in listening})
    if unknown:
        raise ValueError(f"there is no listener {', '.join(unknown)} to be advertised")
    ports = [endpoint[1:] for endpoint in listening if endpoint.port]
    if len(set(ports)) != len(ports):
        raise ValueError("each listener must have a different port")
    for endpoint in advertised:
        check_advertised(endpoint.host, endpoint.port)
    return tuple(
        ListenerSpec(each.name, each.host, each.port, _protocol(each.name, protocols), told.get(each.name))
        for each in listening
    )


def _protocol(name: str, protocols: Mapping[str, SecurityProtocol]) -> SecurityProtocol:
    protocol = protocols.get(name) or (name if name in PROTOCOLS else None)
    if protocol is None:
        raise ValueError(
            f"no security protocol is defined for listener {name}: add it to listener.security.protocol.map"
        )
    return cast("SecurityProtocol", protocol)

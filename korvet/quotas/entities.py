"""Entities and values of client quotas (KIP-124, KIP-546, KIP-612), and their form in Redis.

An entity is a user, a client id, both, or an IP address; the name None is the default for all names without a
quota of their own.
"""

from __future__ import annotations

import ipaddress
import math
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
# The greatest value by key, for values that must be whole numbers.
_CLIENT_KEYS: Final = {
    PRODUCER_BYTE_RATE: (2**63 - 1, "a LONG"),
    CONSUMER_BYTE_RATE: (2**63 - 1, "a LONG"),
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_KEYS: Final = {CONNECTION_CREATION_RATE: (2**31 - 1, "an INT")}
# The greatest distance from a whole number of a value that must be whole.
_FRACTION: Final = 1e-6
# Match types of a filter's component (DescribeClientQuotasRequest.json).
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types with names, ordered by type."""


class InvalidQuota(ValueError):
    """An impossible quota, or a filter that matches nothing, in Kafka's words."""


class UnsupportedEntity(InvalidQuota):
    """A filter for an unknown entity type."""


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """The entity with these names by type."""
    return tuple(sorted(names.items()))


def check_entity(entity: Entity) -> None:
    """Raises InvalidQuota for an entity that cannot have quotas."""
    if not entity:
        raise InvalidQuota("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in TYPES:
            raise InvalidQuota(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidQuota(f"Empty {kind} not supported")
    names = dict(entity)
    if IP not in names:
        return
    if len(names) > 1:
        raise InvalidQuota(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        )
    address = names[IP]
    if address is not None:
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise InvalidQuota(f"{address} is not a valid IP or resolvable host.") from error


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raises InvalidQuota for a value that the entity's quota cannot have."""
    keys = _IP_KEYS if IP in dict(entity) else _CLIENT_KEYS
    if key not in keys:
        raise InvalidQuota(f"Invalid configuration key {key}")
    if not math.isfinite(value):
        raise InvalidQuota(f"Quota {key} must be a finite number")
    if value <= 0:
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    whole = keys[key]
    if whole is None:
        return
    greatest, kind = whole
    if value > greatest:
        raise InvalidQuota(f"Proposed value for {key} is too large for {kind}.")
    if value % 1 > _FRACTION:
        raise InvalidQuota(f"{key} cannot be a fractional value.")


class EntityFilter:
    """A filter of DescribeClientQuotas: which entities match."""

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> None:
        """components: type, match type, name. `strict`: entities must have no types besides these.

        Raises InvalidQuota.
        """
        self._strict = strict
        self._names: dict[str, str | None] = {}
        self._named: set[str] = set()
        for kind, match_type, name in components:
            self._add(kind, match_type, name)
        kinds = self._names.keys() | self._named
        if IP in kinds and len(kinds) > 1:
            raise InvalidQuota(
                "Invalid entity filter component combination. IP filter component should not be used with "
                "user or clientId filter component."
            )

    def _add(self, kind: str, match_type: int, name: str | None) -> None:
        if not kind:
            raise InvalidQuota("Invalid empty entity type.")
        if kind in self._names or kind in self._named:
            raise InvalidQuota(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in TYPES:
            raise UnsupportedEntity(f"Unsupported entity type {kind}")
        if match_type == _EXACT:
            if name is None:
                raise InvalidQuota("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            self._names[kind] = name
        elif match_type not in (_DEFAULT, _SPECIFIED):
            raise InvalidQuota(f"Unknown match type {match_type}")
        elif name is not None:
            said = "DEFAULT" if match_type == _DEFAULT else "SPECIFIED"
            raise InvalidQuota(f"Request specified MATCH_TYPE_{said}, but also specified a match string.")
        elif match_type == _DEFAULT:
            self._names[kind] = None
        else:
            self._named.add(kind)

    def matches(self, entity: Entity) -> bool:
        """Whether the filter matches the entity."""
        names = dict(entity)
        if self._strict and len(names) != len(self._names) + len(self._named):
            return False
        exact = all(kind in names and names[kind] == name for kind, name in self._names.items())
        return exact and self._named <= names.keys()


def field_of(entity: Entity, key: str) -> bytes:
    """The field of one quota in the hash of quotas."""
    return msgspec.json.encode((entity, key))


def parse_field(field: bytes) -> tuple[Entity, str]:
    """Parse `field_of`. Raises ValueError."""
    found, key = msgspec.json.decode(field, type=tuple[tuple[tuple[str, str | None], ...], str])
    return found, key

"""Access control lists as in Kafka: bindings and the filters that match them (KIP-11, KIP-290).

The numbers of all enumerations are those of the protocol.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

WILDCARD: Final = "*"
EVERYBODY: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"


class _Number(IntEnum):
    """Hashed as its number: decisions are looked up by these numbers, and Enum would hash their names."""

    __hash__ = int.__hash__


class ResourceType(_Number):
    """The type of resource that a binding covers (org.apache.kafka.common.resource.ResourceType)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Number):
    """How a binding's resource name matches; ANY and MATCH are for filters (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Number):
    """An operation on a resource (org.apache.kafka.common.acl.AclOperation)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Number):
    """Whether a binding allows or denies (org.apache.kafka.common.acl.AclPermissionType)."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class InvalidAcl(ValueError):
    """A binding that cannot be stored; the message is Kafka's."""


class Acl(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One binding: `principal` from `host` may, or may not, do `operation` on the resources of the
    pattern.
    """

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def check(self) -> None:
        """Raises InvalidAcl for a binding that Kafka does not store; the checks have Kafka's order."""
        if self.resource_type == ResourceType.CLUSTER and self.name != CLUSTER_NAME:
            raise InvalidAcl(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
        if not self.name:
            raise InvalidAcl("Invalid empty resource name")
        if self.resource_type not in set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}:
            raise InvalidAcl(f"Invalid resourceType {_named(ResourceType, self.resource_type)}")
        if self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise InvalidAcl(f"Invalid patternType {_named(PatternType, self.pattern_type)}")
        if self.operation not in set(Operation) - {Operation.UNKNOWN, Operation.ANY}:
            raise InvalidAcl(f"Invalid operation {_named(Operation, self.operation)}")
        if self.permission not in (Permission.DENY, Permission.ALLOW):
            raise InvalidAcl(f"Invalid permissionType {_named(Permission, self.permission)}")
        if ":" not in self.principal:
            raise InvalidAcl(
                f"Could not parse principal from `{self.principal}` (no colon is present separating the "
                "principal type from the principal name)"
            )
        _check_host(self.host)

    def names(self, resource_name: str) -> bool:
        """Whether the pattern includes the resource of that name."""
        if self.pattern_type == PatternType.PREFIXED:
            return resource_name.startswith(self.name)
        return self.name in (resource_name, WILDCARD)


class AclFilter(msgspec.Struct, frozen=True):
    """A filter of bindings; None and ANY match every value."""

    resource_type: int = ResourceType.ANY
    name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @property
    def is_known(self) -> bool:
        """Whether all elements are known: Kafka refuses filters with unknown elements."""
        return (
            self.resource_type in set(ResourceType) - {ResourceType.UNKNOWN}
            and self.pattern_type in set(PatternType) - {PatternType.UNKNOWN}
            and self.operation in set(Operation) - {Operation.UNKNOWN}
            and self.permission in set(Permission) - {Permission.UNKNOWN}
        )

    def matches(self, acl: Acl) -> bool:
        """Whether the filter matches the binding."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None or self.name == acl.name:
            return True
        return self.pattern_type == PatternType.MATCH and acl.names(self.name)


def find(acls: Iterable[Acl], wanted: AclFilter) -> list[Acl]:
    """The bindings that a filter matches, sorted."""
    return sorted(acl for acl in acls if wanted.matches(acl))


def encode(acl: Acl) -> bytes:
    """A binding as the field of a hash: the same binding always has the same bytes."""
    return msgspec.json.encode(acl)


def decode(field: bytes) -> Acl:
    """Parse `encode`. Raises msgspec.DecodeError."""
    return msgspec.json.decode(field, type=Acl)


@lru_cache(maxsize=65_536)
def host_matches(pattern: str, host: str) -> bool:
    """Whether a binding's host matches an address: the wildcard, the same address in any notation, or a
    CIDR range.
    """
    if pattern in (WILDCARD, host):
        return True
    try:
        return ip_address(host.partition("%")[0]) in ip_network(pattern, strict=False)
    except ValueError:
        return False


def _check_host(host: str) -> None:
    if not host:
        raise InvalidAcl("Host pattern cannot be null or empty")
    if "/" in host:
        try:
            ip_network(host, strict=False)
        except ValueError as error:
            raise InvalidAcl(f"Invalid CIDR notation '{host}': {error}") from error


def _named(kind: type[IntEnum], number: int) -> str:
    return kind(number).name if number in set(kind) else "UNKNOWN"

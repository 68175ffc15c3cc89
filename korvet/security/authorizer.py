"""Kafka's StandardAuthorizer over a set of bindings, with cached decisions per client.

Super users may do everything. Otherwise a DENY that matches wins over every ALLOW; if no binding covers a
resource, `allow.everyone.if.no.acl.found` decides.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from korvet.security.acls import (
    CLUSTER_NAME,
    EVERYBODY,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    host_matches,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

_IMPLY_DESCRIBE: Final = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
)
_IMPLY_DESCRIBE_CONFIGS: Final = frozenset(
    {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}
)
# Limits the cached decisions of all principals together, and the length of resource names in them: clients
# choose the names, and must not fill the memory. The cache takes at most 30 MB.
_MOST_DECISIONS: Final = 65_536
_LONGEST_NAME: Final = 255
_MOST_ACCESSES: Final = 10_000
# Kafka checks this name to find out whether a principal may do an operation on every resource.
_NO_RESOURCE: Final = "hardcode"

# Operations of each resource type (AclEntry.supportedOperations), for authorized-operations fields.
OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


class Authorizer:
    """All bindings, and the rules besides them. `replace` sets new bindings; decisions follow at once."""

    def __init__(self, super_users: Iterable[str] = (), *, allow_everyone: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone
        self.acls: frozenset[Acl] = frozenset()
        """The bindings in force."""
        self.version = 0
        """Increases with every change of the bindings."""
        self._literal: dict[tuple[int, str], list[Acl]] = {}
        self._prefixed: dict[int, list[Acl]] = {}
        self._accesses: dict[tuple[str, str], Access] = {}
        self._kept = 0
        self._keepers: dict[int, dict[tuple[int, int, str], bool]] = {}

    def replace(self, acls: Iterable[Acl]) -> None:
        """Replace all bindings."""
        fresh = frozenset(acls)
        if fresh == self.acls:
            return
        self.acls = fresh
        self._literal, self._prefixed = {}, {}
        for acl in fresh:
            if acl.pattern_type == PatternType.PREFIXED:
                self._prefixed.setdefault(acl.resource_type, []).append(acl)
            else:
                self._literal.setdefault((acl.resource_type, acl.name), []).append(acl)
        self.version += 1

    def access(self, principal: str, host: str) -> Access:
        """The decisions for a principal (`User:alice`) at an address, shared by all its connections."""
        known = self._accesses.get((principal, host))
        if known is None:
            if len(self._accesses) >= _MOST_ACCESSES:
                self._accesses.clear()
            known = self._accesses[principal, host] = Access(self, principal, host)
        return known

    def keep(
        self, decisions: dict[tuple[int, int, str], bool], asked: tuple[int, int, str], allowed: bool
    ) -> None:
        """Cache a decision for a principal, unless the resource's name is too long. A full cache is
        cleared.
        """
        if len(asked[2]) > _LONGEST_NAME:
            return
        if self._kept >= _MOST_DECISIONS:
            for each in self._keepers.values():
                each.clear()
            self._keepers = {}
            self._kept = 0
        if not decisions:
            self._keepers[id(decisions)] = decisions
        decisions[asked] = allowed
        self._kept += 1

    def decide(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        """Whether the operation on one resource is allowed."""
        if principal in self._super_users:
            return True
        found = self._about(kind, name)
        if not found:
            return self._allow_everyone
        allowed = False
        for acl in found:
            if acl.principal not in (principal, EVERYBODY) or not host_matches(acl.host, host):
                continue
            if acl.permission == Permission.DENY:
                if acl.operation in (operation, Operation.ALL):
                    return False
            elif _allows(acl.operation, operation):
                allowed = True
        return allowed

    def decide_any(self, principal: str, host: str, operation: int, kind: int) -> bool:
        """Whether the operation is allowed on any resource of a type (Authorizer.authorizeByResourceType)."""
        if self.decide(principal, host, operation, kind, _NO_RESOURCE):
            return True
        mine = [
            acl
            for acl in self.acls
            if acl.resource_type == kind
            and acl.principal in (principal, EVERYBODY)
            and host_matches(acl.host, host)
            and acl.operation in (operation, Operation.ALL)
        ]
        denials = [acl for acl in mine if acl.permission == Permission.DENY]
        return any(
            acl.permission == Permission.ALLOW and not any(_covers(denial, acl) for denial in denials)
            for acl in mine
        )

    def _about(self, kind: int, name: str) -> list[Acl]:
        literal = self._literal
        found = [*literal.get((kind, name), ()), *literal.get((kind, WILDCARD), ())]
        found += [acl for acl in self._prefixed.get(kind, ()) if name.startswith(acl.name)]
        return found


class Access:
    """The decisions for one principal at one address, cached until bindings change."""

    __slots__ = ("_authorizer", "_decisions", "_version", "host", "principal")

    def __init__(self, authorizer: Authorizer, principal: str, host: str) -> None:
        self.principal = principal
        self.host = host
        self._authorizer = authorizer
        self._version = authorizer.version
        self._decisions: dict[tuple[int, int, str], bool] = {}

    @property
    def version(self) -> int:
        """Increases whenever decisions may have changed."""
        return self._authorizer.version

    def allows(self, operation: int, kind: int, name: str = CLUSTER_NAME) -> bool:
        """Whether the operation on the resource is allowed."""
        asked = operation, kind, name
        if self._version == self._authorizer.version:
            known = self._decisions.get(asked)
            if known is not None:
                return known
        return self._decide(asked)

    def _decide(self, asked: tuple[int, int, str]) -> bool:
        if self._version != self._authorizer.version:
            self._version = self._authorizer.version
            self._decisions.clear()
        allowed = self._authorizer.decide(self.principal, self.host, *asked)
        self._authorizer.keep(self._decisions, asked, allowed)
        if not allowed:
            operation, kind, name = asked
            log.debug(
                "%s at %s is denied %s on %s %r",
                self.principal,
                self.host,
                Operation(operation).name,
                ResourceType(kind).name,
                name,
            )
        return allowed

    def allows_any(self, operation: int, kind: int) -> bool:
        """Whether the operation is allowed on some resource of the type."""
        return self._authorizer.decide_any(self.principal, self.host, operation, kind)

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The bit field of the operations that are allowed on a resource (KIP-430)."""
        return sum(1 << each for each in OPERATIONS[kind] if self.allows(each, kind, name))


def all_operations(kind: ResourceType) -> int:
    """The bit field of all operations of a resource type."""
    return sum(1 << each for each in OPERATIONS[kind])


def parse_super_users(text: str) -> frozenset[str]:
    """Parse `super.users`: principals separated by semicolons, because their names may contain commas.

    Raises ValueError for a principal without a type.
    """
    users = frozenset(part.strip() for part in text.split(";") if part.strip())
    for user in users:
        if ":" not in user:
            raise ValueError(f"expected principals like User:alice between semicolons, not {user!r}")
    return users


def _allows(given: int, wanted: int) -> bool:
    """Whether an ALLOW of one operation implies another one: some imply DESCRIBE or DESCRIBE_CONFIGS."""
    if wanted == Operation.DESCRIBE:
        return given in _IMPLY_DESCRIBE
    if wanted == Operation.DESCRIBE_CONFIGS:
        return given in _IMPLY_DESCRIBE_CONFIGS
    return given in (wanted, Operation.ALL)


def _covers(denial: Acl, allowed: Acl) -> bool:
    """Whether a denial covers everything that a binding allows."""
    if denial.pattern_type == PatternType.PREFIXED:
        return allowed.name != WILDCARD and allowed.name.startswith(denial.name)
    if denial.name == WILDCARD:
        return True
    return allowed.pattern_type == PatternType.LITERAL and allowed.name == denial.name

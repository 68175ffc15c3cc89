"""Decisions as in Kafka's StandardAuthorizer; filters; refused bindings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.security.acls import (
    Acl,
    AclFilter,
    InvalidAcl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    decode,
    encode,
    find,
    host_matches,
)
from korvet.security.authorizer import Authorizer, all_operations, parse_super_users

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ALICE, HOST = "User:alice", "10.0.0.1"


def acl(
    operation: Operation,
    name: str = "t",
    *,
    deny: bool = False,
    principal: str = ALICE,
    host: str = "*",
    prefixed: bool = False,
    kind: ResourceType = TOPIC,
) -> Acl:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = Permission.DENY if deny else Permission.ALLOW
    return Acl(kind, name, pattern, principal, host, operation, permission)


def may(acls: list[Acl], operation: Operation, name: str = "t", **rules: bool) -> bool:
    authorizer = Authorizer(**rules)
    authorizer.replace(acls)
    return authorizer.access(ALICE, HOST).allows(operation, TOPIC, name)


R, W, D = Operation.READ, Operation.WRITE, Operation.DESCRIBE


@pytest.mark.parametrize(
    ("acls", "operation", "allowed"),
    [
        ([], R, False),
        ([acl(R)], R, True),
        ([acl(R)], W, False),
        ([acl(Operation.ALL)], W, True),
        ([acl(R, "*")], R, True),
        ([acl(R, "t", prefixed=True)], R, True),
        ([acl(R, "", prefixed=True)], R, True),
        ([acl(R, "tt", prefixed=True)], R, False),
        ([acl(R, "T")], R, False),
        ([acl(R, kind=GROUP)], R, False),
        ([acl(R, principal="User:*")], R, True),
        ([acl(R, principal="User:bob")], R, False),
        ([acl(R, host=HOST)], R, True),
        ([acl(R, host="10.0.0.2")], R, False),
        ([acl(R, host="10.0.0.0/30")], R, True),
        ([acl(R, host="10.0.1.0/24")], R, False),
        ([acl(R, host="::/0")], R, False),
        ([acl(R), acl(R, host="10.0.0.0/8", deny=True)], R, False),
        ([acl(R), acl(R, deny=True)], R, False),
        ([acl(R), acl(Operation.ALL, deny=True)], R, False),
        ([acl(R), acl(W, deny=True)], R, True),
        ([acl(R), acl(R, "*", deny=True, principal="User:*")], R, False),
        ([acl(R, "*"), acl(R, "t", deny=True, prefixed=True)], R, False),
        ([acl(R), acl(R, deny=True, host="10.0.0.2")], R, True),
        # Operations that imply DESCRIBE; a denial implies nothing.
        ([acl(R)], D, True),
        ([acl(W)], D, True),
        ([acl(Operation.DELETE)], D, True),
        ([acl(Operation.ALTER)], D, True),
        ([acl(Operation.CREATE)], D, False),
        ([acl(D), acl(R, deny=True)], D, True),
        ([acl(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, True),
        ([acl(Operation.ALTER_CONFIGS)], D, False),
        ([acl(D)], Operation.DESCRIBE_CONFIGS, False),
    ],
)
def test_decisions(acls: list[Acl], operation: Operation, allowed: bool) -> None:
    assert may(acls, operation) is allowed


def test_what_no_binding_is_about_is_for_everyone_if_so_configured() -> None:
    assert may([], R, allow_everyone=True)
    assert may([acl(R, "other")], R, allow_everyone=True)
    assert not may([acl(R, principal="User:bob")], R, allow_everyone=True)


def test_super_users_may_do_everything() -> None:
    authorizer = Authorizer(parse_super_users("User:alice;User:CN=a,O=b"))
    authorizer.replace([acl(R, deny=True)])
    assert authorizer.access(ALICE, HOST).allows(R, TOPIC, "t")
    assert authorizer.access("User:CN=a,O=b", HOST).allows(R, TOPIC, "t")
    assert not authorizer.access("User:bob", HOST).allows(R, TOPIC, "t")
    assert parse_super_users("") == frozenset()
    with pytest.raises(ValueError, match="alice"):
        parse_super_users("alice")


def test_changes_are_in_force_at_once_though_decisions_are_kept() -> None:
    authorizer = Authorizer()
    access = authorizer.access(ALICE, HOST)
    assert access is authorizer.access(ALICE, HOST)
    assert not access.allows(R, TOPIC, "t")
    version = access.version
    authorizer.replace([acl(R)])
    assert access.version > version
    assert access.allows(R, TOPIC, "t")
    version = access.version
    authorizer.replace([acl(R)])
    assert access.version == version
    authorizer.replace([])
    assert not access.allows(R, TOPIC, "t")


def test_operations_are_those_that_are_allowed() -> None:
    authorizer = Authorizer()
    authorizer.replace([acl(R), acl(Operation.ALTER_CONFIGS)])
    allowed = authorizer.access(ALICE, HOST).operations(TOPIC, "t")
    assert allowed == sum(1 << each for each in (R, D, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS))
    assert all_operations(TOPIC) == 0b1101_1111_1000
    assert all_operations(GROUP) == 0b1101_0100_1000
    assert all_operations(ResourceType.CLUSTER) == 0b1_1111_1010_0000


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl(W, "x")], True),
        ([acl(R, "x")], False),
        ([acl(W, "x"), acl(W, "x", deny=True)], False),
        ([acl(W, "x"), acl(W, "*", deny=True)], False),
        ([acl(W, "xy"), acl(W, "x", deny=True, prefixed=True)], False),
        ([acl(W, "xy", prefixed=True), acl(W, "xy", deny=True)], True),
        ([acl(W, "x"), acl(W, "y"), acl(W, "y", deny=True)], True),
        ([acl(W, "*"), acl(W, "x", deny=True, prefixed=True)], True),
        ([acl(W, "x", principal="User:bob")], False),
    ],
)
def test_an_operation_on_any_resource(acls: list[Acl], allowed: bool) -> None:
    authorizer = Authorizer()
    authorizer.replace(acls)
    assert authorizer.access(ALICE, HOST).allows_any(W, TOPIC) is allowed


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (AclFilter(), ["*", "t", "te", "x"]),
        (AclFilter(name="t"), ["t"]),
        (AclFilter(name="test", pattern_type=PatternType.MATCH), ["*", "te"]),
        (AclFilter(name="t", pattern_type=PatternType.MATCH), ["*", "t"]),
        (AclFilter(pattern_type=PatternType.PREFIXED), ["te"]),
        (AclFilter(name="te", pattern_type=PatternType.LITERAL), []),
        (AclFilter(resource_type=GROUP), ["x"]),
        (AclFilter(operation=W), ["te"]),
        (AclFilter(permission=Permission.DENY), ["t"]),
        (AclFilter(principal="User:bob"), ["x"]),
        (AclFilter(host=HOST), ["*"]),
    ],
)
def test_filters(wanted: AclFilter, names: list[str]) -> None:
    acls = [
        acl(R, "*", host=HOST),
        acl(R, "t", deny=True),
        acl(W, "te", prefixed=True),
        acl(R, "x", kind=GROUP, principal="User:bob"),
    ]
    assert sorted(each.name for each in find(acls, wanted)) == names
    assert wanted.is_known


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"pattern_type": PatternType.MATCH}, "Invalid patternType MATCH"),
        ({"pattern_type": 9}, "Invalid patternType UNKNOWN"),
        ({"resource_type": ResourceType.ANY}, "Invalid resourceType ANY"),
        ({"operation": Operation.ANY}, "Invalid operation ANY"),
        ({"permission": 0}, "Invalid permissionType UNKNOWN"),
        ({"principal": "alice"}, "Could not parse principal from `alice`"),
        ({"host": ""}, "Host pattern cannot be null or empty"),
        ({"host": "10.0.0.0/33"}, "Invalid CIDR notation"),
        ({"name": ""}, "Invalid empty resource name"),
        ({"resource_type": ResourceType.CLUSTER}, "The only valid name for the CLUSTER resource"),
    ],
)
def test_bindings_that_are_refused(changed: dict[str, object], text: str) -> None:
    good = acl(R)
    good.check()
    fields = {name: getattr(good, name) for name in good.__struct_fields__}
    with pytest.raises(InvalidAcl, match=text):
        Acl(**{**fields, **changed}).check()  # type: ignore[arg-type]


NAMES = st.text("ab*", max_size=3)
ACLS = st.builds(
    Acl,
    resource_type=st.sampled_from([TOPIC, GROUP]),
    name=NAMES,
    pattern_type=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    principal=st.sampled_from([ALICE, "User:bob", "User:*"]),
    host=st.sampled_from([HOST, "*"]),
    operation=st.sampled_from([Operation.ALL, R, W, D]),
    permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


@given(acls=st.lists(ACLS, max_size=8), name=NAMES, operation=st.sampled_from([R, W]))
def test_decisions_agree_with_looking_at_every_binding(
    acls: list[Acl], name: str, operation: Operation
) -> None:
    mine = [
        each
        for each in acls
        if each.resource_type == TOPIC
        and each.names(name)
        and each.principal in (ALICE, "User:*")
        and each.operation in (operation, Operation.ALL)
    ]
    expected = any(each.permission == Permission.ALLOW for each in mine) and not any(
        each.permission == Permission.DENY for each in mine
    )
    assert may(acls, operation, name) is expected
    assert [decode(encode(each)) for each in acls] == acls


def test_an_address_is_the_same_however_it_is_written() -> None:
    assert host_matches("0:0:0:0:0:0:0:1", "::1")
    assert host_matches("fe80::/10", "fe80::1%eth0")
    assert not host_matches("localhost", "127.0.0.1")

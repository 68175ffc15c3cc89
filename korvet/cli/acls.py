"""`korvet acls`: does what kafka-acls does, with its words."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import click
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.create_acls.v3.response import CreateAclsResponse
from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.delete_acls.v3.response import DeleteAclsResponse
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import DescribeAclsResponse
from kio.static.primitive import i8

from korvet.cli.client import Bootstrap, Cluster, check
from korvet.cli.options import bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    InvalidAcl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_OPERATIONS = [each.name for each in Operation if each > Operation.ANY]
_WORD_STARTS = re.compile("(?<=[a-z])(?=[A-Z])")
_COLUMNS = ("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST")
# What a producer and a consumer need, as kafka-acls adds it.
_PRODUCER = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER = {ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE), ResourceType.GROUP: (Operation.READ,)}


class _OperationName(click.Choice[str]):
    """The name of an operation, in any case and also as Kafka's tools write it: DescribeConfigs."""

    def __init__(self) -> None:
        super().__init__(_OPERATIONS, case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Fails with click's error for other names."""
        return super().convert(_WORD_STARTS.sub("_", str(value)), param, ctx)


class _Resource(NamedTuple):
    kind: ResourceType
    name: str


class _Named(NamedTuple):
    """What the options of all three commands name."""

    resources: tuple[_Resource, ...]
    principals: tuple[str, ...]
    hosts: tuple[str, ...]
    operations: tuple[Operation, ...]
    permission: Permission | None


def _named_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all three commands, as the arguments of `_named`."""
    words = _OperationName()
    permissions = click.Choice([Permission.ALLOW.name, Permission.DENY.name], case_sensitive=False)
    for option in (
        click.option("--permission", type=permissions, help="Whether the ACL allows or denies."),
        click.option("--operation", "operations", type=words, multiple=True, help="Repeatable."),
        click.option("--host", "hosts", multiple=True, metavar="ADDRESS", help="The client's. Repeatable."),
        click.option(
            "--principal", "principals", multiple=True, metavar="User:NAME", help="Who. Repeatable."
        ),
        click.option(
            "--user-principal", "users", multiple=True, metavar="User:NAME", help="A user as resource."
        ),
        click.option("--cluster", is_flag=True, help="The cluster."),
        click.option("--transactional-id", "transactional_ids", multiple=True, help="Repeatable."),
        click.option("--group", "groups", multiple=True, help="A group. Repeatable."),
        click.option("--topic", "topics", multiple=True, help="A topic. Repeatable."),
    ):
        command = option(command)
    return command


def _pattern_option(words: Sequence[PatternType], **rest: Any) -> Callable[..., Any]:
    names = click.Choice([each.name for each in words], case_sensitive=False)
    return click.option("--resource-pattern-type", "pattern", type=names, show_default=True, **rest)


_filter_pattern_option = _pattern_option(
    (PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED),
    default=PatternType.ANY.name,
    help="MATCH also finds ACLs whose prefix or wildcard includes the name.",
)


@click.group()
def acls() -> None:
    """List, add and remove access control lists."""


@acls.command("list")
@_named_options
@_filter_pattern_option
@bootstrap_option
@json_option
def list_acls(pattern: str, bootstrap: Bootstrap, as_json: bool, **options: Any) -> None:
    """List the ACLs that the options name, by default all."""
    with Cluster(bootstrap) as cluster:
        found = _find(cluster, _filters(_named(**options), PatternType[pattern]))
    if as_json:
        names = [column.lower() for column in _COLUMNS]
        print_json([dict(zip(names, _row(acl), strict=True)) for acl in found])
    else:
        table(_COLUMNS, map(_row, found))


@acls.command("add")
@_named_options
@_pattern_option((PatternType.LITERAL, PatternType.PREFIXED), default=PatternType.LITERAL.name)
@click.option("--producer", is_flag=True, help="What a producer needs on --topic and --transactional-id.")
@click.option("--consumer", is_flag=True, help="What a consumer needs on --topic and --group.")
@bootstrap_option
def add_acls(pattern: str, producer: bool, consumer: bool, bootstrap: Bootstrap, **options: Any) -> None:
    """Add ACLs: one for each resource, principal, host (by default all) and operation. They allow, unless
    --permission is DENY.
    """
    named = _named(**options)
    if not named.resources or not named.principals:
        raise click.UsageError("give a resource (--topic, --group ...) and --principal")
    if not (named.operations or producer or consumer):
        raise click.UsageError("give --operation, --producer or --consumer")
    wanted = [
        Acl(
            resource.kind,
            resource.name,
            PatternType.LITERAL if resource.kind is ResourceType.CLUSTER else PatternType[pattern],
            principal,
            host,
            operation,
            named.permission or Permission.ALLOW,
        )
        for resource in named.resources
        for principal in named.principals
        for host in named.hosts or (WILDCARD,)
        for operation in _operations(resource.kind, named.operations, producer, consumer)
    ]
    if not wanted:
        raise click.UsageError(
            "--producer is for topics and transactional IDs, --consumer for topics and groups"
        )
    for acl in wanted:
        try:
            acl.check()
        except InvalidAcl as error:
            raise click.UsageError(str(error)) from error
    creations = tuple(
        AclCreation(
            resource_type=i8(acl.resource_type),
            resource_name=acl.name,
            resource_pattern_type=i8(acl.pattern_type),
            principal=acl.principal,
            host=acl.host,
            operation=i8(acl.operation),
            permission_type=i8(acl.permission),
        )
        for acl in wanted
    )
    with Cluster(bootstrap) as cluster:
        answer = cluster.ask(CreateAclsRequest(creations=creations), CreateAclsResponse)
    for acl, result in zip(wanted, answer.results, strict=True):
        check(result.error_code, f"ACL of {acl.principal} for {acl.name}", result.error_message)
    table(_COLUMNS, map(_row, wanted))


@acls.command("remove")
@_named_options
@_filter_pattern_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def remove_acls(pattern: str, yes: bool, bootstrap: Bootstrap, **options: Any) -> None:
    """Remove the ACLs that the options name, after showing them."""
    named = _named(**options)
    if not any(named):
        raise click.UsageError("name the ACLs to remove: a resource, --principal, --operation ...")
    with Cluster(bootstrap) as cluster:
        filters = _filters(named, PatternType[pattern])
        found = _find(cluster, filters)
        table(_COLUMNS, map(_row, found))
        if not found:
            return
        if not yes:
            click.confirm("\nRemove these ACLs?", abort=True)
        request = DeleteAclsRequest(filters=tuple(DeleteAclsFilter(**_fields(each)) for each in filters))
        for result in cluster.ask(request, DeleteAclsResponse).filter_results:
            check(result.error_code, "ACLs", result.error_message)
            for acl in result.matching_acls:
                check(acl.error_code, f"ACL of {acl.principal} for {acl.resource_name}", acl.error_message)


def _named(
    *,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    users: tuple[str, ...],
    principals: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[str, ...],
    permission: str | None,
) -> _Named:
    resources = [
        *(_Resource(ResourceType.TOPIC, name) for name in topics),
        *(_Resource(ResourceType.GROUP, name) for name in groups),
        *(_Resource(ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids),
        *(_Resource(ResourceType.USER, name) for name in users),
    ]
    if cluster:
        resources.append(_Resource(ResourceType.CLUSTER, CLUSTER_NAME))
    return _Named(
        tuple(resources),
        principals,
        hosts,
        tuple(Operation[word] for word in operations),
        None if permission is None else Permission[permission],
    )


def _operations(
    kind: ResourceType, named: Iterable[Operation], producer: bool, consumer: bool
) -> dict[Operation, None]:
    """Returns the operations for a resource, each once and in order."""
    found = [*named]
    found += _PRODUCER.get(kind, ()) if producer else ()
    found += _CONSUMER.get(kind, ()) if consumer else ()
    return dict.fromkeys(found)


def _filters(named: _Named, pattern: PatternType) -> list[AclFilter]:
    return [
        AclFilter(
            ResourceType.ANY if resource is None else resource.kind,
            None if resource is None else resource.name,
            pattern,
            principal,
            host,
            operation,
            named.permission or Permission.ANY,
        )
        for resource in named.resources or (None,)
        for principal in named.principals or (None,)
        for host in named.hosts or (None,)
        for operation in named.operations or (Operation.ANY,)
    ]


def _fields(wanted: AclFilter) -> dict[str, Any]:
    """The fields of a filter in the requests to describe and to delete."""
    return {
        "resource_type_filter": i8(wanted.resource_type),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": i8(wanted.pattern_type),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": i8(wanted.operation),
        "permission_type": i8(wanted.permission),
    }


def _find(cluster: Cluster, filters: Iterable[AclFilter]) -> list[Acl]:
    """Returns the ACLs that at least one of the filters matches, sorted."""
    return sorted({acl for wanted in filters for acl in _describe(cluster, wanted)})


def _describe(cluster: Cluster, wanted: AclFilter) -> Iterator[Acl]:
    answer = cluster.ask(DescribeAclsRequest(**_fields(wanted)), DescribeAclsResponse)
    check(answer.error_code, "ACLs", answer.error_message)
    for resource in answer.resources:
        for acl in resource.acls:
            yield Acl(
                int(resource.resource_type),
                resource.resource_name,
                int(resource.pattern_type),
                acl.principal,
                acl.host,
                int(acl.operation),
                int(acl.permission_type),
            )


def _row(acl: Acl) -> tuple[str, ...]:
    return (
        acl.principal,
        _word(Permission, acl.permission),
        _word(Operation, acl.operation),
        _word(ResourceType, acl.resource_type),
        acl.name,
        _word(PatternType, acl.pattern_type),
        acl.host,
    )


def _word(kind: type[IntEnum], number: int) -> str:
    """Returns Kafka's word; the number if it is newer than this command."""
    try:
        return kind(number).name
    except ValueError:
        return str(number)

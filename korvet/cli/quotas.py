"""`korvet quotas`: limits of users, client IDs and IP addresses, as kafka-configs sets them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from kio.schema.alter_client_quotas.v1.request import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from kio.schema.alter_client_quotas.v1.response import AlterClientQuotasResponse
from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse
from kio.static.primitive import f64, i8

from korvet.cli.client import Bootstrap, ClientError, Cluster, check
from korvet.cli.options import KeyValue, bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.quotas.entities import CLIENT_ID, IP, TYPES, USER

# Match types of a filter's component.
_EXACT, _DEFAULT = i8(0), i8(1)
# What Kafka's tools print for the entity that stands for all without quotas of their own.
_DEFAULT_NAME = "<default>"

Names = Mapping[str, str | None]


def _entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name an entity, as the arguments of `_names`."""
    for kind, what in ((IP, "IP address"), (CLIENT_ID, "client ID"), (USER, "user")):
        field = kind.replace("-", "_")
        default = f"--{kind.removesuffix('-id')}-defaults"
        command = click.option(
            default, f"default_{field}", is_flag=True, help=f"Every {what} without a quota of its own."
        )(command)
        command = click.option(f"--{kind}", field, help=f"One {what}.")(command)
    return command


def _names(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the entity's names by type; None stands for the default."""
    names: dict[str, str | None] = {}
    for kind in TYPES:
        field = kind.replace("-", "_")
        if options[field] is not None and options[f"default_{field}"]:
            raise click.UsageError(f"--{kind} and its defaults exclude each other")
        if options[field] is not None or options[f"default_{field}"]:
            names[kind] = options[field]
    return names


def _named(options: Mapping[str, Any]) -> dict[str, str | None]:
    """As `_names`. Raises UsageError if the options name no entity."""
    names = _names(options)
    if not names:
        raise click.UsageError("name an entity: --user, --client-id, --ip, or the defaults of one")
    return names


@click.group()
def quotas() -> None:
    """List, set and remove quotas of clients."""


@quotas.command("list")
@_entity_options
@bootstrap_option
@json_option
def list_quotas(bootstrap: Bootstrap, as_json: bool, **options: Any) -> None:
    """List the quotas of all entities, or of those that the options name."""
    with Cluster(bootstrap) as cluster:
        found = _describe(cluster, _names(options), strict=False)
    if as_json:
        print_json([{"entity": names, "quotas": values} for names, values in found])
        return
    rows = [
        (*(_shown(names, kind) for kind in TYPES), key, value)
        for names, values in found
        for key, value in values.items()
    ]
    table(("USER", "CLIENT ID", "IP", "QUOTA", "VALUE"), rows)


@quotas.command("set")
@click.argument("pairs", type=KeyValue(), nargs=-1, required=True)
@_entity_options
@bootstrap_option
def set_quotas(pairs: tuple[tuple[str, str], ...], bootstrap: Bootstrap, **options: Any) -> None:
    """Set quotas of a user, a client ID, both, or an IP address, such as producer_byte_rate=1048576."""
    names = _named(options)
    changes: dict[str, float | None] = {}
    for key, text in pairs:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise click.UsageError(f"{key}: expected a number, not {text!r}")
        changes[key] = value
    with Cluster(bootstrap) as cluster:
        _alter(cluster, names, changes)
    click.echo(f"set {', '.join(changes)} of {_described(names)}")


@quotas.command("remove")
@click.argument("keys", nargs=-1)
@_entity_options
@bootstrap_option
def remove_quotas(keys: Sequence[str], bootstrap: Bootstrap, **options: Any) -> None:
    """Remove the named quotas of an entity, or all of them."""
    names = _named(options)
    with Cluster(bootstrap) as cluster:
        ((_, existing),) = _describe(cluster, names, strict=True) or (({}, {}),)
        missing = [key for key in keys if key not in existing]
        if missing or not existing:
            what = ", ".join(missing) or "quotas"
            raise ClientError(f"{_described(names)} has no {what}")
        changes = dict.fromkeys(keys or existing)
        _alter(cluster, names, changes)
    click.echo(f"removed {', '.join(changes)} of {_described(names)}")


def _describe(
    cluster: Cluster, names: Names, *, strict: bool
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """Returns names and quotas of the entities with these names; strict: with no others."""
    components = tuple(
        ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in names.items()
    )
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    answer = cluster.ask(request, DescribeClientQuotasResponse)
    check(answer.error_code, "quotas", answer.error_message)
    found = [
        (
            {each.entity_type: each.entity_name for each in entry.entity},
            {each.key: _number(each.value) for each in sorted(entry.values, key=lambda value: value.key)},
        )
        for entry in answer.entries or ()
    ]
    return sorted(found, key=lambda each: [_shown(each[0], kind) for kind in TYPES])


def _alter(cluster: Cluster, names: Names, changes: Mapping[str, float | None]) -> None:
    entity = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in names.items())
    ops = tuple(
        OpData(key=key, value=f64(value or 0.0), remove=value is None) for key, value in changes.items()
    )
    request = AlterClientQuotasRequest(entries=(EntryData(entity=entity, ops=ops),), validate_only=False)
    for entry in cluster.ask(request, AlterClientQuotasResponse).entries:
        check(entry.error_code, f"quotas of {_described(names)}", entry.error_message)


def _shown(names: Names, kind: str) -> str:
    if kind not in names:
        return ""
    name = names[kind]
    return _DEFAULT_NAME if name is None else name


def _described(names: Names) -> str:
    return ", ".join(f"{kind} {_shown(names, kind)}" for kind in names)


def _number(value: float) -> float:
    return int(value) if value.is_integer() else value

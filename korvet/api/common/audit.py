"""The audit log: one line for each resource that a client has altered, or was refused to alter.

It has the names and settings of the request, without secrets: values of settings that may hold a password,
and of settings that korvet doesn't know, are left out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.config.changes import ConfigOperation
from korvet.config.keys import SECRETS, find
from korvet.logs import fields
from korvet.security.acls import Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from enum import IntEnum

    from korvet.api.common.context import RequestContext

log = logging.getLogger("korvet.audit")

# Limits the lines of one request, and the characters of a description.
_MOST_LINES: Final = 100
_MOST_CHARACTERS: Final = 1000
_HIDDEN: Final = "***"
# Numbers of Kafka's resource types for configs.
_CONFIG_TYPES: Final = {2: "topic", 4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}
_BROKER: Final = 4


class Change(NamedTuple):
    """What a request alters, and whether it was altered."""

    what: str
    error: ErrorCode


def audit(context: RequestContext, api: str, request: Any, response: Any) -> None:
    """Log what a request has altered, if it is of an API that alters something."""
    find_changes = CHANGES.get(api)
    if find_changes is None or getattr(request, "validate_only", False) or not log.isEnabledFor(logging.INFO):
        return
    try:
        changes = list(find_changes(request, response))
        for change in changes[:_MOST_LINES]:
            _write(context, api, change)
    except Exception:
        # The change is made: its client must get the answer.
        log.exception("changes by %s could not be logged", api)
        return
    if left_out := len(changes[_MOST_LINES:]):
        log.info("%s: %d more changes", api, left_out, extra=fields(api=api, left_out=left_out))


def _write(context: RequestContext, api: str, change: Change) -> None:
    client = context.client
    what, address = change.what[:_MOST_CHARACTERS], context.client_host.removeprefix("/")
    result = "done" if change.error is ErrorCode.none else change.error.name.upper()
    named = {
        "principal": client.session.principal,
        "address": address,
        "client_id": context.client_id,
        "api": api,
    }
    log.info(
        "%s at %s (client %r): %s %s: %s",
        *(client.session.principal, address, context.client_id, api, what, result),
        extra=fields(**named, change=what, result=result),
    )


def _created_topics(request: Any, response: Any) -> Iterator[Change]:
    errors = {each.name: each.error_code for each in response.topics}
    for topic in request.topics:
        details = [f"{len(topic.assignments) or topic.num_partitions} partitions"]
        details += [f"{config.name}={config.value}" for config in topic.configs]
        yield Change(f"topic {topic.name} ({', '.join(details)})", errors.get(topic.name, ErrorCode.none))


def _deleted_topics(request: Any, response: Any) -> Iterator[Change]:
    for each in response.responses:
        yield Change(f"topic {each.name or getattr(each, 'topic_id', None)}", each.error_code)


def _created_partitions(request: Any, response: Any) -> Iterator[Change]:
    counts = {topic.name: topic.count for topic in request.topics}
    for each in response.results:
        yield Change(f"topic {each.name} ({counts.get(each.name)} partitions)", each.error_code)


def _altered_configs(request: Any, response: Any) -> Iterator[Change]:
    errors = {(each.resource_type, each.resource_name): each.error_code for each in response.responses}
    for resource in request.resources:
        kind = _CONFIG_TYPES.get(resource.resource_type, f"type {resource.resource_type}")
        name = resource.resource_name or "default"
        changes = ", ".join(_config(resource.resource_type, config) for config in resource.configs)
        yield Change(f"{kind} {name} ({changes})", errors[resource.resource_type, resource.resource_name])


def _config(resource_type: int, config: Any) -> str:
    operation = getattr(config, "config_operation", ConfigOperation.SET)
    if operation == ConfigOperation.DELETE:
        return f"{config.name} deleted"
    sign = {ConfigOperation.APPEND: "+=", ConfigOperation.SUBTRACT: "-="}.get(operation, "=")
    return f"{config.name}{sign}{config.value if _is_public(resource_type, config.name) else _HIDDEN}"


def _is_public(resource_type: int, name: str) -> bool:
    if resource_type != _BROKER:
        return True
    found = find(name)
    return found is not None and found[1].key not in SECRETS


def _created_acls(request: Any, response: Any) -> Iterator[Change]:
    for acl, result in zip(request.creations, response.results, strict=True):
        pattern = getattr(acl, "resource_pattern_type", PatternType.LITERAL)
        yield Change(_acl(acl, pattern), result.error_code)


def _deleted_acls(request: Any, response: Any) -> Iterator[Change]:
    for found in response.filter_results:
        if found.error_code is not ErrorCode.none:
            yield Change("ACLs of a filter", found.error_code)
        for acl in found.matching_acls:
            pattern = getattr(acl, "pattern_type", PatternType.LITERAL)
            yield Change(_acl(acl, pattern), acl.error_code)


def _acl(acl: Any, pattern: int) -> str:
    resource = f"{_name(PatternType, pattern)} {_name(ResourceType, acl.resource_type)} {acl.resource_name}"
    permission = f"{_name(Permission, acl.permission_type)} {_name(Operation, acl.operation)}"
    return f"{resource}: {permission} for {acl.principal} from {acl.host}"


def _name(numbers: type[IntEnum], number: int) -> str:
    """The name of a number of the protocol; the number itself if it is unknown."""
    try:
        return numbers(number).name
    except ValueError:
        return str(number)


def _altered_users(request: Any, response: Any) -> Iterator[Change]:
    errors = {each.user: each.error_code for each in response.results}
    for each in request.deletions:
        yield Change(f"user {each.name} (mechanism {each.mechanism} deleted)", errors[each.name])
    for each in request.upsertions:
        yield Change(f"user {each.name} (mechanism {each.mechanism} set)", errors[each.name])


def _altered_quotas(request: Any, response: Any) -> Iterator[Change]:
    for asked, result in zip(request.entries, response.entries, strict=True):
        entity = ", ".join(f"{part.entity_type} {part.entity_name or 'default'}" for part in asked.entity)
        changes = (f"{op.key} deleted" if op.remove else f"{op.key}={op.value:g}" for op in asked.ops)
        yield Change(f"quotas of {entity} ({', '.join(changes)})", result.error_code)


def _deleted_records(request: Any, response: Any) -> Iterator[Change]:
    asked = ((topic.name, each) for topic in request.topics for each in topic.partitions)
    offsets = {(name, each.partition_index): each.offset for name, each in asked}
    for topic in response.topics:
        for each in topic.partitions:
            offset = offsets[topic.name, each.partition_index]
            yield Change(f"{topic.name}-{each.partition_index} before offset {offset}", each.error_code)


def _deleted_groups(request: Any, response: Any) -> Iterator[Change]:
    for each in response.results:
        yield Change(f"group {each.group_id}", each.error_code)


def _deleted_offsets(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code is not ErrorCode.none:
        yield Change(f"offsets of group {request.group_id}", response.error_code)
    for topic in response.topics:
        for each in topic.partitions:
            what = f"offset of group {request.group_id} for {topic.name}-{each.partition_index}"
            yield Change(what, each.error_code)


def _updated_features(request: Any, response: Any) -> Iterator[Change]:
    errors = {each.feature: each.error_code for each in getattr(response, "results", ())}
    for each in request.feature_updates:
        error = response.error_code or errors.get(each.feature, ErrorCode.none)
        yield Change(f"feature {each.feature} (level {each.max_version_level})", ErrorCode(error))


CHANGES: Final[dict[str, Callable[[Any, Any], Iterable[Change]]]] = {
    "AlterClientQuotas": _altered_quotas,
    "AlterConfigs": _altered_configs,
    "AlterUserScramCredentials": _altered_users,
    "CreateAcls": _created_acls,
    "CreatePartitions": _created_partitions,
    "CreateTopics": _created_topics,
    "DeleteAcls": _deleted_acls,
    "DeleteGroups": _deleted_groups,
    "DeleteRecords": _deleted_records,
    "DeleteTopics": _deleted_topics,
    "IncrementalAlterConfigs": _altered_configs,
    "OffsetDelete": _deleted_offsets,
    "UpdateFeatures": _updated_features,
}
"""By API: (request, response) -> what the request alters."""

"""Authorized operations: bit fields of Kafka's AclOperation codes (KIP-430). Without ACLs all are allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.security.acls import CLUSTER_NAME, Operation, ResourceType
from korvet.security.authorizer import all_operations

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

NOT_ASKED: Final = -(2**31)
_ALL: Final = {
    kind: all_operations(kind) for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
}


def operations_on(context: RequestContext, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
    """What the client may do with a resource."""
    access = context.client.session.access
    return _ALL[kind] if access is None else access.operations(kind, name)


def cluster_operations(context: RequestContext) -> int:
    """What the client may do with the cluster; nothing if it may not describe the cluster."""
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return operations_on(context, ResourceType.CLUSTER)

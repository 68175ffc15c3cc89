"""What the three ACL APIs share: filters and bindings as the protocol has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from korvet.security.acls import Acl, AclFilter

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

NO_AUTHORIZER: Final = "No Authorizer is configured."
UNKNOWN_ELEMENTS: Final = "The filter has elements that are unknown here"


def filter_of(asked: Any) -> AclFilter:
    """A filter of DescribeAcls or DeleteAcls."""
    return AclFilter(
        resource_type=asked.resource_type_filter,
        name=asked.resource_name_filter,
        pattern_type=asked.pattern_type_filter,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=asked.operation,
        permission=asked.permission_type,
    )


def acl_of(asked: Any) -> Acl:
    """A binding of CreateAcls."""
    return Acl(
        resource_type=asked.resource_type,
        name=asked.resource_name,
        pattern_type=asked.resource_pattern_type,
        principal=asked.principal,
        host=asked.host,
        operation=asked.operation,
        permission=asked.permission_type,
    )


def description(context: RequestContext, acl: Acl) -> Any:
    """One ACL binding in a DescribeAcls response, without its resource."""
    return context.make(
        "AclDescription",
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )

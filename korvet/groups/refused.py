"""Refusals of the newer protocols, consumer and share, and the checks that both make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.offsets.wire import MAX_STRING_BYTES, fits_string

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# Limits the topic names in one subscription, because each heartbeat of a member looks up all of them. One
# request may create as many topics; a consumer of more topics uses an expression.
_MOST_SUBSCRIBED: Final = 10_000


class Refused(Exception):
    """A request that is answered with an error and changes nothing."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def check_filled(**values: str | None) -> None:
    """Refuse blank values, by the names of their fields. None is an absent value."""
    for name, value in values.items():
        if value is not None and not value.strip():
            raise Refused(ErrorCode.invalid_request, f"{name} can't be empty.")


def check_subscription(names: Collection[str]) -> None:
    """Refuse a subscription to too many topics."""
    if len(names) > _MOST_SUBSCRIBED:
        raise Refused(
            ErrorCode.invalid_request, f"SubscribedTopicNames can't be more than {_MOST_SUBSCRIBED}."
        )


def check_lengths(**fields: str | Iterable[str] | None) -> None:
    """Refuse strings that the group's records cannot hold, by the names of their fields."""
    for name, field in fields.items():
        texts = (field,) if isinstance(field, str) else field or ()
        if not all(map(fits_string, texts)):
            raise Refused(ErrorCode.invalid_request, f"{name} can't be longer than {MAX_STRING_BYTES} bytes.")


def unknown_member(group_id: str, member_id: str) -> Refused:
    """The refusal of a member that the group does not have."""
    return Refused(ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group_id}.")

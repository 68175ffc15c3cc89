"""Topic names: Kafka's rules (org.apache.kafka.common.internals.Topic) and its collision rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from korvet.storage.keys import MAX_NAME_LENGTH
from korvet.topics.errors import InvalidTopicName, NameCollision

if TYPE_CHECKING:
    from collections.abc import Iterable

OFFSETS_TOPIC: Final = "__consumer_offsets"
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicName unless `name` may be a topic's."""
    if not name:
        raise InvalidTopicName("Topic name is invalid: the empty string is not allowed")
    if name in (".", ".."):
        raise InvalidTopicName('Topic name is invalid: "." or ".." is not allowed')
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopicName(
            f"Topic name is invalid: the length of '{name}' is longer than {MAX_NAME_LENGTH}"
        )
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(
            f"Topic name is invalid: '{name}' has characters other than letters, digits, '.', '_' and '-'"
        )


def check_collision(name: str, existing: Iterable[str]) -> None:
    """Raises NameCollision if a topic differs from `name` in '.' and '_' only: metrics could not tell them
    apart.
    """
    if "." not in name and "_" not in name:
        return
    folded = name.replace(".", "_")
    for other in existing:
        if other != name and other.replace(".", "_") == folded:
            raise NameCollision(name, other)

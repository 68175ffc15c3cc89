"""Topic names: Kafka's rules (org.apache.kafka.common.internals.Topic) and its collision rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from korvet.redis.keys import MAX_NAME_LENGTH
from korvet.topics.errors import InvalidTopicName, NameCollision

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class CollidingNames:
    """The names of existing topics by metric name, in which '.' and '_' are equal."""

    def __init__(self) -> None:
        self._edition = -1
        self._names: set[str] = set()
        self._by_metric: dict[str, set[str]] = {}

    def follow(self, existing: Mapping[str, object], edition: int) -> None:
        """Update to the topics of a version of the catalogue."""
        if edition == self._edition:
            return
        for name in existing.keys() - self._names:
            self._by_metric.setdefault(_metric_of(name), set()).add(name)
        for name in self._names - existing.keys():
            alike = self._by_metric[_metric_of(name)]
            alike.discard(name)
            if not alike:
                del self._by_metric[_metric_of(name)]
        self._names, self._edition = set(existing), edition

    def check(self, name: str) -> None:
        """Raises NameCollision if a topic differs from `name` in '.' and '_' only: their metrics would have
        the same name.
        """
        for other in sorted(self._by_metric.get(_metric_of(name), ())):
            if other != name:
                raise NameCollision(name, other)


def _metric_of(name: str) -> str:
    return name.replace(".", "_")

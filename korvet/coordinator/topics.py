"""The catalogue's topics in the form that consumer groups use."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from korvet.groups.consumer.topics import TopicInfo

if TYPE_CHECKING:
    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.topic import Topic
    from korvet.coordinator.expressions import TopicExpressions
    from korvet.groups.consumer.topics import Matching


class CatalogueTopics:
    """All current topics except those in deletion: see korvet.groups.consumer.topics.Topics."""

    def __init__(self, catalogue: Catalogue, expressions: TopicExpressions) -> None:
        self._catalogue = catalogue
        self._expressions = expressions

    @property
    def version(self) -> int:
        """The catalogue's version."""
        return self._catalogue.applied_version

    def get(self, name: str) -> TopicInfo | None:
        """The topic of that name."""
        return _info(self._catalogue.get(name))

    def by_id(self, topic_id: bytes) -> TopicInfo | None:
        """The topic of that id."""
        return _info(self._catalogue.by_id(uuid.UUID(bytes=topic_id)))

    def matching(self, pattern: str) -> Matching | None:
        """The topics that an expression matches, as the last search found them."""
        return self._expressions.matching(pattern)


def _info(topic: Topic | None) -> TopicInfo | None:
    return None if topic is None else TopicInfo(topic.name, topic.topic_id.bytes, topic.partitions)

"""What can be wrong with a topic that someone wants to make, change or delete. Messages are for the client's
user.
"""


class TopicError(Exception):
    """Base of the errors below."""


class InvalidTopicName(TopicError):
    """The name can't be a topic's."""


class NameCollision(InvalidTopicName):
    """The name is too like that of `other`, which only those may learn who may see that topic."""

    def __init__(self, name: str, other: str) -> None:
        super().__init__(f"Topic '{name}' collides with existing topic: {other}")
        self.name = name
        self.other = other


class UnknownTopic(TopicError):
    """No topic of that name or id."""


class TopicExists(TopicError):
    """There is a topic of that name."""


class InternalTopic(TopicError):
    """Not to be done to the broker's own topics."""


class InvalidPartitions(TopicError):
    """A partition count that can't be."""


class InvalidReplication(TopicError):
    """A replication factor or assignment that this cluster can't give: it has one broker."""


class InvalidTopicConfig(TopicError):
    """A config name or value that can't be."""


class TooManyPartitions(TopicError):
    """More partitions than one request may make."""


class InvalidAssignment(TopicError):
    """A manual replica assignment that can't be."""


class InvalidTopicRequest(TopicError):
    """A request that contradicts itself."""

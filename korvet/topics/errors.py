"""Errors of requests that create, change or delete topics. Messages are for the client's user."""


class TopicError(Exception):
    """Base of the errors below."""


class InvalidTopicName(TopicError):
    """The name is not a legal topic name."""


class NameCollision(InvalidTopicName):
    """The name differs from that of `other` only in '.' and '_'. Only clients that may see `other` may learn
    its name.
    """

    def __init__(self, name: str, other: str) -> None:
        super().__init__(f"Topic '{name}' collides with existing topic: {other}")
        self.name = name
        self.other = other


class UnknownTopic(TopicError):
    """No topic has that name or id."""


class TopicExists(TopicError):
    """A topic of that name exists."""


class InternalTopic(TopicError):
    """The operation is not allowed on the broker's own topics."""


class InvalidPartitions(TopicError):
    """An impossible partition count."""


class InvalidReplication(TopicError):
    """A replication factor or assignment that the cluster cannot provide: each partition has one replica."""


class InvalidTopicConfig(TopicError):
    """An impossible config name or value."""


class TooManyPartitions(TopicError):
    """More partitions than one request may create."""


class InvalidAssignment(TopicError):
    """An impossible manual replica assignment."""


class InvalidTopicRequest(TopicError):
    """A request that contradicts itself."""

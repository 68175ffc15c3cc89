"""The topic catalogue of a keyspace, a Redis hash of topic name to JSON."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from korvet.offsets.native_entry import native_field
from korvet.spark.records.columns import CREATE_TIME, LOG_APPEND_TIME, Origin
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from korvet.spark.source.address import Address
    from korvet.spark.source.connection import SourceConnection

OFFSETS_TOPIC = "__consumer_offsets"
# Partitions of a topic; brokers accept no more.
_MAX_PARTITIONS = 1_000_000
# What an unreadable catalogue entry can raise.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the catalogue describes it."""

    name: str
    partitions: int
    dense: bool
    timestamp_type: int
    internal: bool
    native_field: bytes | None
    compacted: bool = False
    topic_id: str = ""
    """Differs from an earlier topic of the same name; empty if the catalogue has no ID."""
    append_times: bool = False
    """Whether the time in an entry ID is the record's timestamp."""
    has_batches: bool = False
    """Whether an entry may be several records (storage.layout=batch)."""

    def origin(self, partition: int) -> Origin:
        """Return what all records of one partition share."""
        bias = 1 if self.dense else 0
        return Origin(
            self.name, partition, bias, self.timestamp_type, self.native_field, append_times=self.append_times
        )


def check_keyspace(connection: SourceConnection, address: Address) -> None:
    """Raises SourceError if Redis has no key of the keyspace, so no broker has used it."""
    keys = (address.topics_key, f"{{{address.keyspace}}}:cluster")
    if not connection.call("EXISTS", *keys):
        raise SourceError(
            f"there is no keyspace {address.keyspace!r} in Redis at {address.url}: give the keyspace of "
            "`korvet serve` by --keyspace, or another Redis"
        )


def load_topics(
    connection: SourceConnection, address: Address, named: Collection[str] = ()
) -> dict[str, TopicInfo]:
    """Return all topics of the keyspace by name (HGETALL of the catalogue).

    A topic with an unreadable catalogue entry is left out with a warning, as brokers do. Raises SourceError
    if that topic is in `named`.
    """
    flat = connection.call("HGETALL", address.topics_key)
    topics = {}
    for field_name, text in zip(flat[::2], flat[1::2], strict=True):
        try:
            topic = _topic_info(field_name.decode(), text)
        except _UNREADABLE as error:
            shown = field_name.decode(errors="backslashreplace")
            problem = (
                f"{address.topics_key}: topic {shown!r} can't be read: {str(error) or type(error).__name__}"
            )
            if shown in named:
                raise SourceError(f"{problem} (`korvet doctor` lists such topics)") from error
            _warn_once(f"{problem}; it is left out")
            continue
        if topic is not None:
            topics[topic.name] = topic
    return topics


@lru_cache(maxsize=1000)
def _warn_once(text: str) -> None:
    """Log a warning once, although a stream reads the catalogue for every micro-batch."""
    log.warning("%s", text)


def _topic_info(name: str, text: bytes) -> TopicInfo | None:
    """The topic; None for one that is being deleted. Raises one of _UNREADABLE."""
    document = json.loads(text)
    if document.get("name", name) != name:
        raise ValueError(f"it contains a topic with another name, {document['name']!r}")
    if document.get("deleting"):
        return None
    partitions = int(document["partitions"])
    if not 1 <= partitions <= _MAX_PARTITIONS:
        raise ValueError(f"{partitions} partitions: must be from 1 to {_MAX_PARTITIONS}")
    configs: Mapping[str, str] = document.get("configs") or {}
    policy = configs.get("cleanup.policy", "")
    assignment = document.get("offset_assignment") or configs.get("offset.assignment") or "clock"
    if assignment not in {"clock", "dense"}:
        raise ValueError(f"{assignment!r} is not an offset assignment")
    timestamp_type = configs.get("message.timestamp.type", "CreateTime")
    dense, appended = assignment == "dense" or name == OFFSETS_TOPIC, timestamp_type == "LogAppendTime"
    has_batches = document.get("storage_layout", "record") != "record"
    return TopicInfo(
        name=name,
        partitions=partitions,
        dense=dense,
        timestamp_type=LOG_APPEND_TIME if appended else CREATE_TIME,
        internal=bool(document.get("internal", name == OFFSETS_TOPIC)),
        native_field=native_field(configs.get("native.format", "json")),
        compacted="compact" in policy or name == OFFSETS_TOPIC,
        topic_id=str(document.get("topic_id", "")),
        append_times=appended and not dense and not has_batches,
        has_batches=has_batches,
    )


def has_id(connection: SourceConnection, address: Address, name: str, topic_id: str) -> bool:
    """Return whether a topic still has an ID. An unreadable catalogue entry is no other topic."""
    text = connection.call("HGET", address.topics_key, name)
    try:
        topic = None if text is None else _topic_info(name, text)
    except _UNREADABLE:
        return True
    return topic is not None and topic.topic_id == topic_id


def select_topics(topics: Mapping[str, TopicInfo], names: Sequence[str], address: Address) -> list[TopicInfo]:
    """Return the named topics. Raises SourceError with the names that don't exist."""
    missing = [name for name in names if name not in topics]
    if missing:
        known = ", ".join(sorted(topics)) or "none"
        raise SourceError(
            f"no topic {', '.join(missing)} in keyspace {address.keyspace!r} of {address.url}; "
            f"topics there: {known}"
        )
    return [topics[name] for name in names]

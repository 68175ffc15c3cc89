"""The topics, partitions and groups that a request names: divides a request into those that a fault matches
and the others, and makes one response of the two. Pure.

The fields of Kafka's schemas (kio) and of the requests that korvet decodes itself have few names, so one walk
serves all APIs.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.faults.table import Fault

_OF_GROUPS: Final = frozenset({"groups", "groups_names", "group_ids", "coordinator_keys"})
_OF_PARTITIONS: Final = frozenset({"partitions", "partition_indexes", "entries"})
# Arrays whose elements name a topic, a partition or a group: as structures, or as strings and integers.
_ARRAYS: Final = (*_OF_GROUPS, "topics", "topic_names", *_OF_PARTITIONS)
_TOPICS: Final = ("topic_id", "name", "topic_name", "topic", "key")
_PARTITIONS: Final = ("index", "partition_index", "partition")
# The fields by which elements of a response are equal to elements of another one.
_NAMES: Final = ("node_id", "group_id", *_TOPICS, *_PARTITIONS)
# The key type of groups in FindCoordinator.
_GROUP: Final = 0
_INDEX: Final = struct.Struct(">i")


class Entry(NamedTuple):
    """What a request asks for, as far as the request names it."""

    group: str | None = None
    topic: str | None = None
    partition: int | None = None


class Divided(NamedTuple):
    """The two parts of a request; None for a part without entries."""

    matched: Any
    others: Any


def divide(request: Any, fault: Fault, name_of: Callable[[UUID], str | None]) -> Divided:
    """Divide a request of the fault's API. `name_of`: a topic's name by its ID."""
    if fault.group is None and fault.topic is None:
        return Divided(request, None)

    def matches(entry: Entry) -> bool:
        return (
            fault.group in (None, entry.group)
            and fault.topic in (None, entry.topic)
            and fault.partition in (None, entry.partition)
        )

    start = Entry(group=_group_of(request))
    return Divided(
        _part(request, start, name_of, matches),
        _part(request, start, name_of, lambda entry: not matches(entry)),
    )


def merged(response: Any, others: Any) -> Any:
    """A response with the elements of another one of the same version. Where both have an element of the same
    name, their arrays are merged; everything else is that of `response`.
    """
    changes = {}
    for field in dataclasses.fields(others):
        added = getattr(others, field.name)
        if isinstance(added, tuple) and added and dataclasses.is_dataclass(added[0]):
            changes[field.name] = _merged_elements(getattr(response, field.name) or (), added)
    return dataclasses.replace(response, **changes)


def _merged_elements(elements: tuple[Any, ...], added: tuple[Any, ...]) -> tuple[Any, ...]:
    result = list(elements)
    places = {_name_of(each): place for place, each in enumerate(elements)}
    for each in added:
        place = places.get(_name_of(each))
        if place is None:
            result.append(each)
        else:
            result[place] = merged(result[place], each)
    return tuple(result)


def _name_of(element: Any) -> tuple[Any, ...]:
    return tuple(getattr(element, name) for name in _NAMES if hasattr(element, name))


def _group_of(request: Any) -> str | None:
    """The one group of a request, if it has one."""
    if hasattr(request, "group_id"):
        group: str = request.group_id
        return group
    # FindCoordinator before v4.
    key: str | None = getattr(request, "key", None)
    return key if getattr(request, "key_type", _GROUP) == _GROUP else None


def _part(
    element: Any, at: Entry, name_of: Callable[[UUID], str | None], wanted: Callable[[Entry], bool]
) -> Any:
    """The element with the wanted entries only; None without any."""
    arrays = {name: found for name in _ARRAYS if (found := getattr(element, name, None))}
    if not arrays:
        return element if wanted(at) else None
    changes: dict[str, Any] = {}
    for name, elements in arrays.items():
        # FindCoordinator of transactional IDs.
        no_groups = name in _OF_GROUPS and getattr(element, "key_type", _GROUP) != _GROUP
        parts = (
            _part(each, at if no_groups else _entry(name, each, at, name_of), name_of, wanted)
            for each in elements
        )
        changes[name] = type(elements)(part for part in parts if part is not None)
    if not any(changes.values()):
        return None
    if isinstance(element, msgspec.Struct):
        return msgspec.structs.replace(element, **changes)
    return dataclasses.replace(element, **changes)


def _entry(array: str, element: Any, at: Entry, name_of: Callable[[UUID], str | None]) -> Entry:
    """The entry that an array's element stands for."""
    if array in _OF_GROUPS:
        return at._replace(group=element if isinstance(element, str) else element.group_id)
    if array in _OF_PARTITIONS:
        return at._replace(partition=_index_of(element))
    return at._replace(topic=_topic_of(element, name_of))


def _index_of(element: Any) -> int:
    if isinstance(element, int):
        return element
    if isinstance(element, bytes):
        # A partition of a Fetch request.
        return int(_INDEX.unpack_from(element)[0])
    return next(int(getattr(element, name)) for name in _PARTITIONS if hasattr(element, name))


def _topic_of(element: Any, name_of: Callable[[UUID], str | None]) -> str | None:
    if isinstance(element, str):
        return element
    found = next((value for name in _TOPICS if (value := getattr(element, name, None)) is not None), None)
    return name_of(found) if isinstance(found, UUID) else found

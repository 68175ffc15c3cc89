"""Decides whether a server may append by KORVET.ADD of the server module. No I/O.

A server replicates KORVET.ADD verbatim, so each of its replicas needs the module too. A replica without it
would lose these records, and report no error.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.storage.errors import StorageError
from korvet.storage.link.replication import parse_replication
from korvet.storage.module import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.storage.link.replication import Replication
    from korvet.storage.link.slots import NodeAddress

# Error replies to a command that the server does not know, and to one that the user may not run. A user that
# may run the command, but not on the key, gets another text.
_UNKNOWN: Final = "unknown command"
_FORBIDDEN: Final = "no permissions to run"


class Use(enum.Enum):
    """Whether the module is used, or why not."""

    USED = enum.auto()
    NOT_LOADED = enum.auto()
    OTHER_VERSION = enum.auto()
    FORBIDDEN = enum.auto()
    REPLICA = enum.auto()
    """A replica lacks the module, or cannot be asked."""
    COPIED = enum.auto()
    """A tool takes a snapshot of the data as a replica does, for a moment."""
    UNKNOWN = enum.auto()
    """The server itself cannot be asked, or is a replica."""


class Answer(msgspec.Struct, frozen=True):
    """The replies of one server; an error takes the place of a reply that did not come."""

    versions: Any
    """KORVET.REPLICAS: the version of the module and that of the set of replicas."""
    replication: bytes | StorageError
    """INFO replication."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether a server's module may be used."""

    use: Use
    reason: str = ""
    """Why the module is not used; empty if it is used."""
    replicas: int | None = None
    """The version of the set of replicas for which the module may be used; None if it is not used."""


def decide(primary: Answer, replicas: Mapping[NodeAddress, Answer]) -> Verdict:
    """The verdict on a primary; `replicas` has the answer of each of its replicas, and of their replicas."""
    problem = problem_of(primary)
    if problem is not None:
        return problem
    if _replication(primary).is_replica:
        return Verdict(Use.UNKNOWN, "the server is a replica")
    if any(replica.takes_snapshot for replica in _replication(primary).replicas):
        return Verdict(Use.COPIED, "a tool copies the data, as a backup does")
    for (host, port), answer in sorted(replicas.items(), key=lambda item: item[0]):
        problem = problem_of(answer)
        if problem is not None:
            return Verdict(Use.REPLICA, f"replica {host}:{port}: {problem.reason}")
    # A replica that attaches now may share its snapshot and what was appended since, and may lack the module.
    for host, port in sorted(replicas.keys() & _synchronising(primary)):
        return Verdict(Use.REPLICA, f"replica {host}:{port}: it synchronises")
    return Verdict(Use.USED, replicas=primary.versions[1])


def problem_of(answer: Answer) -> Verdict | None:
    """Why one server alone cannot use its module, whatever its replicas have; None if it can."""
    versions = answer.versions
    if isinstance(versions, StorageError):
        return refusal(versions)
    if not (isinstance(versions, list) and len(versions) == 2 and all(isinstance(n, int) for n in versions)):
        return Verdict(Use.OTHER_VERSION, f"KORVET.REPLICAS returns {versions!r}")
    if versions[0] != VERSION:
        text = f"the server's module has version {versions[0]}, this korvet needs version {VERSION}"
        return Verdict(Use.OTHER_VERSION, text)
    if isinstance(answer.replication, StorageError):
        return refusal(answer.replication)
    replication = _replication(answer)
    attached, named = replication.attached, len(replication.replicas)
    if attached > named:
        return Verdict(Use.REPLICA, f"INFO replication names {named} of {attached} replicas")
    return None


def refusal(error: StorageError) -> Verdict:
    """The verdict after an error reply, or after no reply."""
    text = str(error)
    if _UNKNOWN in text:
        return Verdict(Use.NOT_LOADED, "the server module is not loaded")
    if is_forbidden(error):
        return Verdict(Use.FORBIDDEN, f"{text} (ACL rules: +korvet.add +korvet.replicas +info)")
    return Verdict(Use.UNKNOWN, text)


def is_forbidden(error: StorageError) -> bool:
    """Whether an error reply reports that the user may not run the command, on whatever key."""
    return _FORBIDDEN in str(error)


def replicas_of(answer: Answer) -> frozenset[NodeAddress]:
    """The addresses of a server's replicas, whatever their state; port 0 if a replica has no port."""
    return frozenset(_states(answer))


def _synchronising(answer: Answer) -> set[NodeAddress]:
    """The replicas that have not received all data yet."""
    return {replica for replica, state in _states(answer).items() if state != "online"}


def _states(answer: Answer) -> dict[NodeAddress, str]:
    return {(replica.host, replica.port): replica.state for replica in _replication(answer).replicas}


def _replication(answer: Answer) -> Replication:
    """What a server reports; nothing if it did not answer."""
    return parse_replication(b"" if isinstance(answer.replication, StorageError) else answer.replication)

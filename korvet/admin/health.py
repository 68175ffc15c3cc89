"""Whether a broker is ready for clients, from facts about it. Pure: no I/O and no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from korvet.observe.lifecycle import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Server(NamedTuple):
    """A Redis server that holds keys of the keyspace."""

    name: str
    connected: bool
    unheard_ms: int
    """The time since it has sent anything."""


class Facts(NamedTuple):
    """What readiness depends on, once the parts of a broker exist."""

    phase: Phase
    holds_lease: bool = True
    servers: Sequence[Server] = ()
    most_unheard_ms: int = 3_000
    """`admin.ready.redis.ms`"""
    loading_groups: int = 0
    """Partitions of `__consumer_offsets` that this broker leads and reads."""
    loading_transactions: int = 0
    """The same of `__transaction_state`."""
    keyspace_lost: str = ""
    """Why the keyspace counts as lost; empty if it is not."""
    writes_refused: str = ""
    """Why writes are refused; empty if they are not."""
    writes_limited: str = ""
    """Why some writes are refused, or will be soon, although the broker is ready; empty if none are."""
    keys_missing: str = ""
    """Why a listener has no keys for tokens, so that nobody can log in with one; empty if it has."""
    keys_stale: str = ""
    """Why a listener has older keys; empty if it has the newest."""


class Check(NamedTuple):
    """One condition of readiness."""

    name: str
    problem: str = ""
    """Why it is not met; empty if it is met."""
    note: str = ""
    """What is wrong although it is met; empty if nothing is."""

    @property
    def text(self) -> str:
        """The problem, or ok, with the note if there is one."""
        return self.problem or (f"ok, but {self.note}" if self.note else "ok")

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


CHECKS = ("serving", "lease", "redis", "groups", "transactions", "keyspace", "writes", "keys")
"""The names of all checks, in their order."""


def readiness(facts: Facts) -> tuple[Check, ...]:
    """Returns all checks; a broker is ready if none has a problem."""
    notes = {"writes": facts.writes_limited, "keys": facts.keys_stale}
    return tuple(
        Check(name, problem, notes.get(name, ""))
        for name, problem in zip(CHECKS, _problems(facts), strict=True)
    )


def is_ready(checks: Sequence[Check]) -> bool:
    """Returns whether all conditions are met."""
    return not any(check.problem for check in checks)


def _problems(facts: Facts) -> Iterator[str]:
    yield "" if facts.phase is Phase.SERVING else f"the broker is {facts.phase}"
    yield "" if facts.holds_lease else "the lease has expired, or a new one is being taken"
    yield "; ".join(_silent(facts))
    yield _loading(facts.loading_groups, "__consumer_offsets")
    yield _loading(facts.loading_transactions, "__transaction_state")
    yield facts.keyspace_lost
    yield facts.writes_refused
    yield facts.keys_missing


def _silent(facts: Facts) -> Iterator[str]:
    for server in facts.servers:
        if not server.connected:
            yield f"no connection to {server.name}"
        elif server.unheard_ms > facts.most_unheard_ms:
            yield f"{server.name} has sent nothing for {server.unheard_ms} ms"


def _loading(partitions: int, topic: str) -> str:
    return f"{partitions} partitions of {topic} are being read" if partitions else ""

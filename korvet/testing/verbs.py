"""What tests ask of a running broker, with the Kafka client of the commands."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from kio.schema.errors import ErrorCode

from korvet.cli import group_requests, log_requests, share_requests, topic_requests, user_requests
from korvet.cli.client import Bootstrap, ClientError, Cluster
from korvet.security.scram import MIN_ITERATIONS, ScramMechanism
from korvet.testing.errors import KorvetBrokerError
from korvet.testing.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.cli.security import ClientSecurity

Result = TypeVar("Result")

# Longest time for what a broker soon can do: after a restart it loads its groups, and elects leaders.
_RETRY_S: Final = 30.0
_PAUSE_S: Final = 0.01
_PASSING: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.leader_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
    }
)
_READ_WAIT_MS: Final = 0
_NO_GROUP: Final = "Dead"
_NO_MEMBERS: Final = frozenset({"Empty", _NO_GROUP})


class Verbs:
    """A client of the brokers, for one thread at a time; others wait."""

    def __init__(self, servers: str, security: ClientSecurity) -> None:
        """`servers`: HOST:PORT, separated by commas."""
        self._bootstrap = Bootstrap(servers, security)
        self._has_several = "," in servers
        self._cluster: Cluster | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    def disconnect(self) -> None:
        """Close the connections. The next request opens new ones."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic, and wait until all brokers know it."""
        self._ask(lambda cluster: topic_requests.create_topic(cluster, name, partitions, configs))
        self._ask(lambda cluster: _check_known(cluster, name))

    def records(self, topic: str) -> list[Record]:
        """Returns all records, sorted by partition and offset."""
        return self._ask(lambda cluster: _records(cluster, topic))

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Returns the committed offsets, by topic and partition."""
        found = self._ask(lambda cluster: group_requests.committed_offsets(cluster, group))
        return {place: int(part.committed_offset) for place, part in found.items()}

    def depth(self, group: str) -> dict[tuple[str, int], int]:
        """Returns what a share group has neither accepted nor archived, in records by topic and partition."""
        return self._ask(lambda cluster: _depth(cluster, group))

    def wait_for_group(self, group: str, members: int, timeout_s: float) -> None:
        """Wait until the group has exactly so many members and doesn't rebalance."""
        deadline = time.monotonic() + timeout_s
        while True:
            state, count = self._ask(lambda cluster: _described(cluster, group))
            if count == members and (state == "Stable" or (not members and state in _NO_MEMBERS)):
                return
            if time.monotonic() > deadline:
                raise KorvetBrokerError(
                    f"group {group}: expected {members} members and no rebalance within {timeout_s:g} s; now "
                    f"it has {count} and is in state {state}"
                )
            time.sleep(_PAUSE_S)

    def set_password(self, user: str, password: str) -> None:
        """Let a user authenticate with every mechanism."""
        for mechanism in ScramMechanism:
            request = partial(
                user_requests.set_password,
                name=user,
                password=password,
                mechanism=mechanism,
                iterations=MIN_ITERATIONS,
            )
            self._ask(request)

    def _ask(self, request: Callable[[Cluster], Result]) -> Result:
        """Ask again while a broker can't answer yet. Raises KorvetBrokerError."""
        deadline = time.monotonic() + _RETRY_S
        while True:
            try:
                with self._lock:
                    if self._process != os.getpid():
                        # After a fork, the parent uses the same connections.
                        self.disconnect()
                        self._process = os.getpid()
                    self._cluster = self._cluster or Cluster(self._bootstrap)
                    return request(self._cluster)
            except ClientError as error:
                # After an error without a code, a connection is unusable.
                if error.code is None:
                    self.disconnect()
                # Another broker takes over from one that does not answer.
                passes = error.code in _PASSING or (error.code is None and self._has_several)
                if not passes or time.monotonic() > deadline:
                    raise KorvetBrokerError(str(error)) from error
            time.sleep(_PAUSE_S)


def _check_known(cluster: Cluster, topic: str) -> None:
    """Raises ClientError unless all brokers know the topic."""
    for broker in cluster.brokers():
        cluster.topic(topic, broker=broker)


def _records(cluster: Cluster, topic: str) -> list[Record]:
    indexes = range(len(cluster.topic(topic).partitions))
    positions = log_requests.list_offsets(cluster, topic, indexes, log_requests.EARLIEST)
    ends = log_requests.list_offsets(cluster, topic, indexes, log_requests.LATEST)
    found = []
    while unread := {index: position for index, position in positions.items() if position < ends[index]}:
        for index, fetched in log_requests.fetch(cluster, topic, unread, _READ_WAIT_MS).items():
            positions[index] = fetched.next_offset
            found += [Record(index, *record) for record in fetched.records if record.offset < ends[index]]
    return sorted(found, key=lambda record: record[:2])


def _depth(cluster: Cluster, group: str) -> dict[tuple[str, int], int]:
    if share_requests.describe(cluster, group) is None:
        return {}
    return {place: int(part.lag) for place, part in share_requests.offsets(cluster, group).items()}


def _described(cluster: Cluster, group: str) -> tuple[str, int]:
    """The state of a group of any type, and the number of its members; of a share group, those with
    partitions.
    """
    described = group_requests.describe_group(cluster, group)
    shared = share_requests.describe(cluster, group) if described.group_state == _NO_GROUP else None
    if shared is not None:
        return str(shared.group_state), sum(bool(group_requests.assigned(each)) for each in shared.members)
    return str(described.group_state), len(described.members)

"""How many replicas partitions have, and should have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from korvet.outlook.copies import Copies, PartitionCopies
from korvet.redis.keys import Keyspace
from korvet.redis.replication import Replication, parse_replication

HOUR_S = 3600


class Servers:
    """A router of servers; partition n is on server n."""

    def __init__(self, *replicas: str | None) -> None:
        self.now_s = 0.0
        self.found = [SimpleNamespace(replication=None, address=place) for place in range(len(replicas))]
        router: Any = SimpleNamespace(servers=lambda: self.found, links=self._links)
        self.copies = PartitionCopies(router, Keyspace("k"), lambda: self.now_s)
        self.report(*replicas)

    def _links(self, key: bytes) -> Any:
        return SimpleNamespace(server=self.found[int(key.rpartition(b":")[2])])

    def report(self, *replicas: str | None) -> None:
        """Each server reports its replicas: `+` in sync, `-` not, `b` a backup, `c` a second
        connection of a replica, for its snapshot; None if nothing is known."""
        for server, states in zip(self.found, replicas, strict=True):
            server.replication = None if states is None else replication(states)
        self.copies.look()

    def of(self, count: int = 1) -> Copies | list[Copies]:
        return self.copies.of_topic("t", count)


def replication(states: str) -> Replication:
    lines = [
        f"slave{number}:ip=h,port={0 if state == 'b' else 6379},"
        f"state={'online' if state == '+' else 'wait_bgsave'},offset=1,lag=0"
        f"{',type=rdb-channel' if state == 'c' else ''}"
        for number, state in enumerate(states)
    ]
    return parse_replication("\r\n".join(lines).encode() + b"\r\n")


def test_replicas_that_attach_are_counted() -> None:
    one = Servers("")
    assert one.of() == Copies(0, 0, 0)
    one.report("-")
    assert one.of() == Copies(1, 1, 0)
    one.report("+-+")
    assert one.of() == Copies(3, 3, 2)


def test_a_replica_that_synchronises_by_two_connections_is_one() -> None:
    one = Servers("+")
    one.report("-c")
    assert one.of() == Copies(1, 1, 0)


def test_a_backup_is_no_replica() -> None:
    one = Servers("+")
    one.report("+b")
    assert one.of() == Copies(1, 1, 1)
    one.report("+")
    assert one.of() == Copies(1, 1, 1)


def test_a_replica_that_is_gone_is_missing_for_an_hour() -> None:
    one = Servers("++")
    one.now_s = 100
    one.report("++")
    one.now_s = 100 + HOUR_S - 1
    one.report("+")
    assert one.of() == Copies(2, 1, 1)
    one.now_s += 1
    one.report("+")
    assert one.of() == Copies(1, 1, 1)


def test_a_replica_that_returns_is_no_new_one() -> None:
    one = Servers("+")
    for states in ("", "-", "+"):
        one.report(states)
        assert one.copies.expected == 1


def test_a_server_that_reports_nothing_has_lost_nothing() -> None:
    one = Servers("+")
    one.now_s = 2 * HOUR_S
    one.report(None)
    assert one.of() == Copies(1, 0, 0)
    assert one.copies.expected == 1


def test_servers_of_a_cluster_with_as_many_replicas() -> None:
    assert Servers("+", "+").of(2) == Copies(1, 1, 1)


def test_servers_of_a_cluster_with_different_replicas() -> None:
    two = Servers("++", "+")
    assert two.copies.expected == 1
    assert two.of(2) == [Copies(2, 2, 2), Copies(1, 1, 1)]
    two.report("+", "")
    assert two.of(2) == [Copies(1, 1, 1), Copies(1, 0, 0)]


@pytest.mark.parametrize(("replicas", "expected"), [(0, 1), (1, 1), (2, 2), (2**31, 31)])
def test_topics_expect_as_many_as_they_ask_for(replicas: int, expected: int) -> None:
    assert Copies(1, 1, 1).expecting(replicas) == Copies(expected, 1, 1)


def test_more_copies_than_a_topic_may_ask_for_are_shown() -> None:
    assert Copies(40, 40, 40).expecting(2**31) == Copies(40, 40, 40)

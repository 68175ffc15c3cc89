"""Whether the server module may be used, as the replies of a primary and its replicas decide it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from korvet.storage.errors import AccessRefused, StorageError, StorageFault, StoreError
from korvet.storage.link.module_verdict import Answer, Use, Verdict, decide, replicas_of
from korvet.storage.module import VERSION

SET_VERSION = 77
UNKNOWN = StorageFault("ERR unknown command 'KORVET.REPLICAS', with args beginning with: ")
# The texts of Redis 7.0, and of Valkey and newer versions of Redis.
FORBIDDEN = [
    "NOPERM this user has no permissions to run the 'korvet.replicas' command",
    "NOPERM User default has no permissions to run the 'korvet.replicas' command",
]


def info(*replicas: str, role: str = "master", attached: int | None = None) -> bytes:
    count = len(replicas) if attached is None else attached
    lines = ["# Replication", f"role:{role}", f"connected_slaves:{count}"]
    lines += [f"slave{number}:{replica}" for number, replica in enumerate(replicas)]
    return "\r\n".join([*lines, "master_replid:4e", ""]).encode()


def answer(
    *replicas: str, versions: Any = None, replication: StorageError | None = None, **options: Any
) -> Answer:
    replied = [VERSION, SET_VERSION] if versions is None else versions
    return Answer(replied, info(*replicas, **options) if replication is None else replication)


ONE = "ip=10.0.0.2,port=6379,state=online,offset=14,lag=0"
TWO = "ip=::1,port=6380,state=online,offset=0,lag=0,type=replica"
HERE, THERE = ("10.0.0.2", 6379), ("::1", 6380)


def test_a_primary_without_replicas() -> None:
    assert decide(answer(), {}) == Verdict(Use.USED, replicas=SET_VERSION)


def test_all_replicas_have_it() -> None:
    replica = answer(role="slave")
    assert decide(answer(ONE, TWO), {HERE: replica, THERE: replica}).replicas == SET_VERSION


@pytest.mark.parametrize(
    ("primary", "use", "reason"),
    [
        (answer(versions=UNKNOWN), Use.NOT_LOADED, "is not loaded"),
        (answer(versions=[VERSION + 1, 5]), Use.OTHER_VERSION, f"has version {VERSION + 1}.* needs version"),
        (answer(versions=[VERSION]), Use.OTHER_VERSION, "returns"),
        (answer(versions=b"OK"), Use.OTHER_VERSION, "returns"),
        (answer(versions=StorageFault("BUSY a script")), Use.UNKNOWN, "BUSY"),
        (answer(replication=AccessRefused(FORBIDDEN[0])), Use.FORBIDDEN, r"\+info"),
        (answer(role="slave"), Use.UNKNOWN, "is a replica"),
        (answer(ONE, attached=2), Use.REPLICA, "1 of 2 replicas"),
    ],
)
def test_reasons_of_the_primary(primary: Answer, use: Use, reason: str) -> None:
    verdict = decide(primary, {})
    assert (verdict.use, verdict.replicas) == (use, None)
    assert re.search(reason, verdict.reason)


@pytest.mark.parametrize("text", FORBIDDEN)
def test_a_user_without_permission(text: str) -> None:
    verdict = decide(answer(versions=AccessRefused(text)), {})
    assert verdict.use is Use.FORBIDDEN
    assert "+korvet.add +korvet.replicas" in verdict.reason


@pytest.mark.parametrize(
    ("replica", "reason"),
    [
        (answer(versions=UNKNOWN), "replica 10.0.0.2:6379: the server module is not loaded"),
        (answer(versions=[VERSION + 1, 5]), f"replica 10.0.0.2:6379: .* version {VERSION + 1}"),
        (answer(versions=StoreError("cannot be reached")), "replica 10.0.0.2:6379: cannot be reached"),
        (answer(ONE, attached=2, role="slave"), "replica 10.0.0.2:6379: .* 1 of 2 replicas"),
    ],
)
def test_one_replica_decides_for_all(replica: Answer, reason: str) -> None:
    verdict = decide(answer(ONE, TWO), {HERE: replica, THERE: answer(role="slave")})
    assert (verdict.use, verdict.replicas) == (Use.REPLICA, None)
    assert re.match(reason, verdict.reason)


@pytest.mark.parametrize("state", ["wait_bgsave", "send_bulk"])
def test_a_tool_that_takes_a_snapshot(state: str) -> None:
    tool = TWO.replace("port=6380", "port=0").replace("online", state)
    verdict = decide(answer(ONE, tool), {HERE: answer(role="slave")})
    assert (verdict.use, verdict.replicas) == (Use.COPIED, None)


@pytest.mark.parametrize("state", ["wait_bgsave", "send_bulk", "bg_transfer", ""])
def test_a_replica_that_synchronises(state: str) -> None:
    """All replicas have the module; another one could still get the snapshot that this one waits for."""
    replica = answer(role="slave")
    synchronising = TWO.replace("online", state)
    verdict = decide(answer(ONE, synchronising), {HERE: replica, THERE: replica})
    assert verdict == Verdict(Use.REPLICA, "replica ::1:6380: it synchronises")


def test_addresses_of_replicas_in_any_state() -> None:
    tool = "ip=127.0.0.1,port=0,state=send_bulk,offset=0,lag=0"
    assert replicas_of(answer(ONE, TWO, tool)) == {HERE, THERE, ("127.0.0.1", 0)}
    assert replicas_of(answer(replication=StoreError("gone"))) == frozenset()

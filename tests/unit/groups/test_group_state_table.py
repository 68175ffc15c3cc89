"""Every request in every state: what it is answered and what state it leads to."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest
from kio.schema.errors import ErrorCode as E

from korvet.groups.messages import DeleteRequest, FetchTopic, OffsetDeleteRequest
from korvet.groups.state import PREDECESSORS, GroupState
from tests.unit.groups.driver import Driver, protocols

if TYPE_CHECKING:
    from collections.abc import Callable

WAITS = None
DEAD, EMPTY, PREPARING, COMPLETING, STABLE = (
    "Dead",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
)
STATES = (DEAD, EMPTY, PREPARING, COMPLETING, STABLE)
LEADER, FOLLOWER = "a-1", "b-2"


def group_in(state: str) -> tuple[Driver, int]:
    """A group of a leader and a follower in this state, and its generation."""
    driver = Driver()
    if state == DEAD:
        return driver, 1
    if state == COMPLETING:
        driver.join(client_id="a")
        driver.join(client_id="b")
        driver.pass_initial_delay()
        return driver, 1
    assert driver.stable("a", "b") == [LEADER, FOLLOWER]
    if state == PREPARING:
        driver.join(FOLLOWER, protocols=protocols("range", topics=("more",)))
    if state == EMPTY:
        driver.leave(LEADER, FOLLOWER)
        return driver, 2
    return driver, 1


def error_of(driver: Driver, token: int) -> E | None:
    reply = driver.replies.get(token)
    return WAITS if reply is None else reply.error


def delete(driver: Driver) -> E:
    return driver.answer("delete_groups", DeleteRequest(("g",))).groups[0].error


def delete_offset(driver: Driver, topic: str) -> E:
    reply = driver.answer("delete_offsets", OffsetDeleteRequest("g", (FetchTopic(topic, (0,)),)))
    return reply.topics[0].partitions[0].error if reply.topics else reply.error


MORE = protocols("range", topics=("more",))

REQUESTS: dict[str, Callable[[Driver, int], E | None]] = {
    "join": lambda d, _: error_of(d, d.join(client_id="c")),
    "join v4": lambda d, _: error_of(d, d.join(client_id="c", needs_member_id=True)),
    "join static": lambda d, _: error_of(d, d.join(group_instance_id="i")),
    "join other type": lambda d, _: error_of(d, d.join(protocol_type="connect")),
    "join other protocol": lambda d, _: error_of(d, d.join(protocols=protocols("sticky"))),
    "join no protocol": lambda d, _: error_of(d, d.join(protocols=())),
    "join stranger": lambda d, _: error_of(d, d.join("x-9")),
    "join leader": lambda d, _: error_of(d, d.join(LEADER)),
    "join follower": lambda d, _: error_of(d, d.join(FOLLOWER)),
    "join follower changed": lambda d, _: error_of(d, d.join(FOLLOWER, protocols=MORE)),
    "join as unknown instance": lambda d, _: error_of(d, d.join(LEADER, group_instance_id="i")),
    "sync leader": lambda d, g: error_of(d, d.sync(LEADER, g)),
    "sync follower": lambda d, g: error_of(d, d.sync(FOLLOWER, g)),
    "sync stranger": lambda d, g: error_of(d, d.sync("x-9", g)),
    "sync old generation": lambda d, g: error_of(d, d.sync(LEADER, g - 1)),
    "sync other protocol": lambda d, g: error_of(d, d.sync(LEADER, g, protocol_name="sticky")),
    "heartbeat": lambda d, g: d.heartbeat(FOLLOWER, g),
    "heartbeat stranger": lambda d, g: d.heartbeat("x-9", g),
    "heartbeat old generation": lambda d, g: d.heartbeat(FOLLOWER, g - 1),
    "leave follower": lambda d, _: d.leave(FOLLOWER)[0],
    "leave all": lambda d, _: d.leave(LEADER, FOLLOWER)[1],
    "leave stranger": lambda d, _: d.leave("x-9")[0],
    "commit": lambda d, g: d.commit(1, FOLLOWER, g),
    "commit v9": lambda d, g: d.commit(1, FOLLOWER, g, knows_member_epochs=True),
    "commit stranger": lambda d, g: d.commit(1, "x-9", g),
    "commit old generation": lambda d, g: d.commit(1, FOLLOWER, g - 1),
    "commit simple": lambda d, _: d.commit(1),
    "commit without generation": lambda d, _: d.commit(1, FOLLOWER, -1),
    "fetch": lambda d, _: E.none if d.fetched() == {} else E.unknown_server_error,
    "delete group": lambda d, _: delete(d),
    "delete offset": lambda d, _: delete_offset(d, "orders"),
    "delete offset of another topic": lambda d, _: delete_offset(d, "bills"),
}


class Row(NamedTuple):
    """(answer, state after) for each state before."""

    dead: tuple[E | None, str]
    empty: tuple[E | None, str]
    preparing: tuple[E | None, str]
    completing: tuple[E | None, str]
    stable: tuple[E | None, str]


def row(*errors: E | None, after: tuple[str, str, str, str, str] = STATES) -> Row:
    return Row(*zip(errors, after, strict=True))


UNKNOWN, OLD, AGAIN = E.unknown_member_id, E.illegal_generation, E.rebalance_in_progress
OTHER, FULL, ABSENT = E.inconsistent_group_protocol, E.non_empty_group, E.group_id_not_found
READ, OK = E.group_subscribed_to_topic, E.none
REBALANCES = (DEAD, EMPTY, PREPARING, PREPARING, PREPARING)

TABLE: dict[str, Row] = {
    "join": row(WAITS, WAITS, WAITS, WAITS, WAITS, after=(PREPARING,) * 5),
    "join v4": row(*(E.member_id_required,) * 5, after=(EMPTY, EMPTY, PREPARING, COMPLETING, STABLE)),
    "join static": row(WAITS, WAITS, WAITS, WAITS, WAITS, after=(PREPARING,) * 5),
    "join other type": row(
        WAITS, WAITS, OTHER, OTHER, OTHER, after=(PREPARING, PREPARING, PREPARING, COMPLETING, STABLE)
    ),
    "join other protocol": row(
        WAITS, WAITS, OTHER, OTHER, OTHER, after=(PREPARING, PREPARING, PREPARING, COMPLETING, STABLE)
    ),
    "join no protocol": row(OTHER, OTHER, OTHER, OTHER, OTHER, after=(EMPTY, *STATES[1:])),
    "join stranger": row(*(UNKNOWN,) * 5),
    "join leader": row(
        UNKNOWN, UNKNOWN, OK, OK, WAITS, after=(DEAD, EMPTY, COMPLETING, COMPLETING, PREPARING)
    ),
    "join follower": row(UNKNOWN, UNKNOWN, WAITS, OK, OK),
    "join follower changed": row(UNKNOWN, UNKNOWN, WAITS, WAITS, WAITS, after=REBALANCES),
    "join as unknown instance": row(*(UNKNOWN,) * 5),
    "sync leader": row(UNKNOWN, UNKNOWN, AGAIN, OK, OK, after=(DEAD, EMPTY, PREPARING, STABLE, STABLE)),
    "sync follower": row(UNKNOWN, UNKNOWN, AGAIN, WAITS, OK),
    "sync stranger": row(*(UNKNOWN,) * 5),
    "sync old generation": row(UNKNOWN, UNKNOWN, OLD, OLD, OLD),
    "sync other protocol": row(UNKNOWN, UNKNOWN, OTHER, OTHER, OTHER),
    "heartbeat": row(UNKNOWN, UNKNOWN, AGAIN, OK, OK),
    "heartbeat stranger": row(*(UNKNOWN,) * 5),
    "heartbeat old generation": row(UNKNOWN, UNKNOWN, OLD, OLD, OLD),
    "leave follower": row(UNKNOWN, UNKNOWN, OK, OK, OK, after=REBALANCES),
    "leave all": row(UNKNOWN, UNKNOWN, OK, OK, OK, after=(DEAD, EMPTY, EMPTY, EMPTY, EMPTY)),
    "leave stranger": row(*(UNKNOWN,) * 5),
    "commit": row(OLD, UNKNOWN, OK, AGAIN, OK),
    "commit v9": row(ABSENT, UNKNOWN, OK, AGAIN, OK),
    "commit stranger": row(OLD, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    "commit old generation": row(OLD, UNKNOWN, OLD, OLD, OLD),
    "commit simple": row(OK, OK, UNKNOWN, UNKNOWN, UNKNOWN, after=(EMPTY, *STATES[1:])),
    "commit without generation": row(OK, OK, OLD, OLD, OLD, after=(EMPTY, *STATES[1:])),
    "fetch": row(OK, OK, OK, OK, OK),
    "delete group": row(ABSENT, OK, FULL, FULL, FULL, after=(DEAD, DEAD, *STATES[2:])),
    "delete offset": row(ABSENT, OK, READ, READ, READ),
    "delete offset of another topic": row(ABSENT, OK, OK, OK, OK),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_request_in_state(request_name: str, state: str) -> None:
    driver, generation = group_in(state)
    assert driver.state() == state
    answer = REQUESTS[request_name](driver, generation)
    assert (answer, driver.state()) == TABLE[request_name][STATES.index(state)]


def test_table_is_complete() -> None:
    assert TABLE.keys() == REQUESTS.keys()
    assert {state.value for state in GroupState} == set(STATES)


def test_predecessors_are_what_the_table_shows() -> None:
    """Each step that a request made is a chain of legal transitions; every legal one but to Dead is used."""
    by_name = {state.value: state for state in GroupState}
    direct = {
        (by_name[before], by_name[after])
        for outcomes in TABLE.values()
        for before, (_, after) in zip(STATES, outcomes, strict=True)
        if before not in {after, DEAD}
    }
    # In one request: a whole rebalance that leaves no member, or one that all members waited for.
    chains = {(GroupState.STABLE, GroupState.EMPTY), (GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)}
    for before, after in direct - chains:
        assert before in PREDECESSORS[after]
    for before, after in chains:
        path = [before, GroupState.PREPARING_REBALANCE, after]
        assert all(first in PREDECESSORS[second] for first, second in pairwise(path))
    legal = {(before, after) for after in GroupState for before in PREDECESSORS[after]}
    assert {pair for pair in legal if pair[1] is not GroupState.DEAD} <= direct

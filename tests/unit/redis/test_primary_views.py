"""Which server is the primary, by what several sentinels know."""

from __future__ import annotations

import msgspec
import pytest

from korvet.redis.primary_views import HOLD_S, PrimaryViews, View, newest_of, parse_view

OLD, NEW = ("old", 1), ("new", 2)


def described(port: int, flags: str = "master", epoch: int = 3) -> list[bytes]:
    words = ["name", "m", "ip", "old", "port", str(port), "flags", flags, "config-epoch", str(epoch)]
    return [word.encode() for word in words]


@pytest.mark.parametrize(
    ("current", "fields", "expected"),
    [
        ([b"old", b"1"], described(1), View(OLD, 3, replicas=2)),
        ([b"new", b"2"], described(1), View(NEW, 3)),
        ([b"old", b"1"], described(1, "s_down,o_down,master"), View(OLD, 3, replicas=2)),
        (
            [b"old", b"1"],
            described(1, "master,failover_in_progress"),
            View(OLD, 3, failing_over=True, replicas=2),
        ),
        # The replica is promoted: the sentinel names it already, and describes the former primary.
        ([b"new", b"2"], described(1, "master,failover_in_progress", 4), View(NEW, 4)),
    ],
)
def test_views(current: list[bytes], fields: list[bytes], expected: View) -> None:
    backup = [b"ip", b"old", b"port", b"0"]
    replicas = [[b"ip", b"a", b"port", b"1"], backup, [b"ip", b"b", b"port", b"1"]]
    assert parse_view(current, fields, replicas) == expected
    refused = parse_view(current, [*fields, b"num-slaves", b"3"], None)
    assert refused == msgspec.structs.replace(expected, replicas=expected.replicas and 3)


@pytest.mark.parametrize(
    ("current", "fields"),
    [([], described(1)), ([b"old", b"x"], described(1)), ([b"old", b"1"], []), ([b"old", b"1"], [b"ip"])],
)
def test_irregular_replies(current: list[bytes], fields: list[bytes]) -> None:
    with pytest.raises((KeyError, ValueError)):
        parse_view(current, fields, [])


def test_the_highest_epoch_is_right_in_any_order() -> None:
    views = [View(OLD, 3), View(NEW, 4), View(OLD, 2)]
    assert newest_of(views) == newest_of(views[::-1]) == View(NEW, 4)


def test_the_first_server_is_used_until_a_view_is_known() -> None:
    views = PrimaryViews(OLD)
    assert views.primary(0.0) == OLD
    views.note("a", View(NEW, 0), 0.0)
    assert views.primary(0.0) == NEW


def test_an_older_configuration_changes_nothing() -> None:
    views = PrimaryViews(OLD)
    views.note("a", View(NEW, 4), 0.0)
    views.note("b", View(OLD, 3), 0.0)
    assert views.primary(0.0) == NEW
    views.note("b", View(OLD, 3, failing_over=True), 0.0)
    assert views.primary(0.0) == NEW


def test_no_server_is_used_between_the_beginning_of_a_failover_and_the_promotion() -> None:
    views = PrimaryViews(OLD)
    views.note("a", View(OLD, 3), 10.0)
    views.note("b", View(OLD, 3, failing_over=True), 10.0)
    assert views.primary(10.0) is None
    assert views.primary(9.9 + HOLD_S) is None
    views.note("b", View(NEW, 4), 10.5)
    assert views.primary(10.5) == NEW
    # The others learn of it later.
    views.note("a", View(OLD, 3), 10.6)
    assert views.primary(10.6) == NEW


def test_a_failover_that_is_aborted_ends_the_wait() -> None:
    views = PrimaryViews(OLD)
    views.note("a", View(OLD, 3, failing_over=True), 10.0)
    assert views.primary(10.0) is None
    views.note("a", View(OLD, 3), 10.1)
    assert views.primary(10.1) == OLD
    # The next attempt has a time of its own.
    views.note("a", View(OLD, 3, failing_over=True), 20.0)
    assert views.primary(20.0) is None


def test_the_wait_for_a_promotion_is_limited() -> None:
    views = PrimaryViews(OLD)
    views.note("a", View(OLD, 3, failing_over=True), 10.0)
    views.note("a", View(OLD, 3, failing_over=True), 11.0)
    assert views.primary(10.0 + HOLD_S) == OLD
    assert views.primary(11.0 + HOLD_S) == OLD


def test_each_sentinel_has_its_own_time_for_a_promotion() -> None:
    """The first one is gone for good."""
    views = PrimaryViews(OLD)
    views.note("a", View(OLD, 3, failing_over=True), 10.0)
    views.note("b", View(OLD, 3, failing_over=True), 30.0)
    assert views.primary(30.0) is None
    assert views.primary(30.0 + HOLD_S) == OLD


def test_the_replicas_that_sentinels_know_are_those_of_the_primary_to_use() -> None:
    views = PrimaryViews(OLD)
    assert views.replicas == 0
    views.note("a", View(OLD, 3, replicas=2), 0.0)
    views.note("b", View(OLD, 3, replicas=1), 0.0)
    assert views.replicas == 2, "a sentinel may not have found all yet"
    views.note("b", View(NEW, 4, replicas=1), 0.0)
    assert views.replicas == 1

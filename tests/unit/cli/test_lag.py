"""Lag as the commands show it: totals, unknown values, times for people. Counting itself: tests/clients."""

from pathlib import Path

import pytest

from korvet.cli import lag
from korvet.cli.groups import _judged, _print_lag
from korvet.cli.lag import Commit, Lag, LagUnknown, Waiting
from korvet.cli.redis_address import RedisSource
from korvet.redis.errors import WrongType

A, B = Commit("t", 0, 5), Commit("t", 1, 9)
NOWHERE = RedisSource(None, Path("does-not-exist"), "korvet")


@pytest.mark.parametrize(
    ("lag_ms", "text"),
    [
        (None, None),
        (0, "0"),
        (1, "1 ms"),
        (999, "999 ms"),
        (1_500, "1.5 s"),
        (61_000, "1 min 1 s"),
        (7_200_000, "2 h"),
        (93_600_000, "1 d 2 h"),
    ],
)
def test_waiting_for_people(lag_ms: int | None, text: str | None) -> None:
    assert lag.waiting(lag_ms) == text


def test_a_total_is_the_sum_and_the_longest_wait() -> None:
    assert lag.total([A, B], {A: Lag(3, 10), B: Lag(4, 20)}) == Lag(7, 20)


@pytest.mark.parametrize(
    ("commits", "lags"),
    [([], {A: Lag(3, 10)}), ([A, B], {A: Lag(3, 10)}), ([A, B], {A: Lag(3, 10), B: WrongType("a list")})],
)
def test_a_total_is_unknown_where_a_part_is(commits: list[Commit], lags: dict[Commit, Lag]) -> None:
    assert lag.total(commits, lags) is None


def test_a_total_has_the_worst_status_that_is_known() -> None:
    assert lag.total([A, B], {A: Lag(0, 0, "OK"), B: Lag(0, 0, "AHEAD")}) == Lag(0, 0, "AHEAD")
    assert lag.total([A, B], {A: Lag(4, 9, "LOST"), B: Waiting(7)}) == Waiting(9, "LOST")
    assert lag.total([A, B], {A: Lag(0, 0, "OK"), B: Waiting(7)}) == Waiting(7)


@pytest.mark.parametrize(("assigned", "status"), [(["t-0"], "OK"), (["t-0", "t-2"], None), ([], "OK")])
def test_a_partition_of_a_member_without_a_commit_leaves_the_status_open(
    assigned: list[str], status: str | None
) -> None:
    """Whether records wait there is not known, nor since when."""
    members = [{"assigned": ["t-1"]}, {"assigned": assigned}]
    assert _judged(Lag(0, 0, "OK"), [A, B], members) == Lag(0, 0, status)
    assert _judged(Lag(0, 0, "AHEAD"), [A, B], members) == Lag(0, 0, "AHEAD")
    assert _judged(None, [A, B], members) is None


def test_fields_of_known_and_unknown_lag() -> None:
    unknown = {"status": None, "record_lag": None, "lag_ms": None}
    assert lag.fields(Lag(0, 0, "OK")) == {"status": "ok", "record_lag": 0, "lag_ms": 0}
    assert lag.fields(Lag(2, 30)) == {"status": None, "record_lag": 2, "lag_ms": 30}
    assert lag.fields(None) == unknown
    assert lag.fields(WrongType("a list")) == unknown


def test_the_table_tells_nothing_unread_from_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"topic": "orders", "partition": 0, "committed": 7, "log_end": 9, "metadata": "m"}
    known, caught_up, unknown = (
        {"status": "lost", "record_lag": 2, "lag_ms": 61_000},
        {"status": "ok", "record_lag": 0, "lag_ms": 0},
        {"status": None, "record_lag": None, "lag_ms": None},
    )
    _print_lag([row | known, row | caught_up, row | unknown])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        [
            "TOPIC",
            "PARTITION",
            "COMMITTED",
            "LOG",
            "END",
            "STATUS",
            "RECORD",
            "LAG",
            "TIME",
            "LAG",
            "METADATA",
        ],
        ["orders", "0", "7", "9", "lost", "2", "1", "min", "1", "s", "m"],
        ["orders", "0", "7", "9", "ok", "0", "0", "m"],
        ["orders", "0", "7", "9", "-", "-", "-", "m"],
    ]


def test_no_redis_is_asked_where_nothing_is_committed() -> None:
    assert lag.measure(NOWHERE, "id", []) == {}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (NOWHERE, "no embedded server runs on does-not-exist"),
        (RedisSource("redis://127.0.0.1:1", Path(), "korvet"), "cannot be reached"),
        (RedisSource("http://127.0.0.1:1", Path(), "korvet"), "a Redis URL begins with"),
        (RedisSource("redis://127.0.0.1:1", Path(), "{brace}"), "no braces"),
    ],
)
def test_lag_is_unknown_without_a_usable_redis(source: RedisSource, reason: str) -> None:
    with pytest.raises(LagUnknown, match=reason):
        lag.measure(source, "id", [A])

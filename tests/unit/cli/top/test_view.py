"""The view: sorted, filtered, cut to the terminal; keys that change it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from korvet.cli.output import size
from korvet.cli.top import view
from korvet.cli.top.keys import press, split
from korvet.cli.top.rows import BrokerRow, GroupRow, Report, TopicRow
from korvet.cli.top.view import State


def topic(name: str, **known: Any) -> TopicRow:
    empty = dict.fromkeys(TopicRow.__struct_fields__)
    counts = {"partitions": 1, "under_replicated": 0, "leaderless": 0, "internal": False}
    return TopicRow(**(empty | counts | {"topic": name} | known))


def group(name: str, **known: Any) -> GroupRow:
    empty = dict.fromkeys(GroupRow.__struct_fields__)
    return GroupRow(
        **(empty | {"group": name, "state": "Stable", "protocol": "consumer", "partitions": 1} | known)
    )


REPORT = Report(
    cluster_id="id",
    now_ms=0,
    brokers=(BrokerRow(1, "localhost:9092", True, 3, 1, 10.0, 2048.0, None, 5.0, 7),),
    topics=(
        topic("orders", records_per_s=3.0, size_bytes=5_000_000),
        topic("audit", records_per_s=1_234_567.0),
        topic("__consumer_offsets", internal=True),
        topic("日本語のトピック名", records_per_s=None),
        topic("evil\x1b[2J\n", records_per_s=0.0, leaderless=1),
    ),
    groups=(
        group("slow", record_lag=12_345, lag_ms=90_000),
        group("idle", state="Empty", record_lag=0, lag_ms=0),
    ),
    notes=("a note", "another"),
)


def texts(
    state: State, width: int = 200, height: int = 40, report: Report | None = REPORT, problem: str = ""
) -> list[str]:
    return [line.plain for line in view.lines(report, state, width, height, problem)]


def names(state: State) -> list[str]:
    return [row.topic for row in view.rows(REPORT, state)]


def test_names_sort_from_the_first_and_numbers_from_the_largest_with_unknown_last() -> None:
    assert names(State())[1:3] == ["audit", "orders"]
    assert names(State(sort="records_per_s"))[1:] == ["audit", "orders", "日本語のトピック名"]
    assert names(State(sort="records_per_s", reverse=True)) == [
        "evil\x1b[2J\n",
        "orders",
        "audit",
        "日本語のトピック名",
    ]


@pytest.mark.parametrize("sort", [None, "records_per_s"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_terminal_of_80_by_24_shows_what_alarms(sort: str | None, reverse: bool) -> None:
    """Among a hundred topics and groups, with every column known."""
    known = dict.fromkeys(TopicRow.__struct_fields__[4:10], 999_999)
    topics = [topic(f"a-topic-with-a-long-name-{number}", **known) for number in range(100)]
    topics += [topic("zzz-no-leader", leaderless=2), topic("yyy-one-copy", under_replicated=3)]
    groups = [group(f"a-group-{number}", lag_ms=5, record_lag=10**9) for number in range(100)]
    groups += [group("zzz-late", lag_ms=600_000, record_lag=1)]
    report = msgspec.structs.replace(REPORT, topics=tuple(topics), groups=tuple(groups), notes=())
    state = State(sort=sort, reverse=reverse)
    shown = texts(state, 80, 24, report)
    assert len(shown) == 24
    first, second = (line.split() for line in shown[3:5])
    assert "NO LEADER" in shown[2]
    assert "UNDER-REPL." in shown[2]
    assert (first[0], second[0]) == ("zzz-no-leader", "yyy-one-copy")
    assert "2" in first
    assert "3" in second
    assert "topics 2!  groups 1!" in shown[0]
    late = texts(State(table="groups", reverse=reverse), 80, 24, report)
    assert late[3].split()[:4] == ["zzz-late", "1", "10", "min"]


def test_a_terminal_without_alarms_needs_no_room_for_them() -> None:
    calm = msgspec.structs.replace(REPORT, topics=(topic("orders"),), groups=())
    shown = texts(State(), 60, 24, calm)
    assert "NO LEADER" not in shown[2]
    assert "!" not in shown[0]


def test_a_filter_ignores_case_and_internal_topics_are_hidden() -> None:
    assert names(State(pattern="ORD")) == ["orders"]
    assert "__consumer_offsets" not in names(State())
    assert "__consumer_offsets" in names(State(internal=True))


@pytest.mark.parametrize("table", view.TABLES)
@pytest.mark.parametrize("width", range(1, 160, 7))
def test_no_line_is_wider_than_the_terminal(table: str, width: int) -> None:
    for height in (1, 3, 5, 40):
        shown = texts(State(table=table, help=True), width, height)
        assert len(shown) <= height
        assert [line for line in shown if cell_len(line) > width or not line.isprintable()] == []


def test_a_narrow_terminal_keeps_the_name_and_the_most_important_columns() -> None:
    calm = msgspec.structs.replace(REPORT, topics=REPORT.topics[:4])
    head = texts(State(), 40, report=calm)[2]
    assert head.split() == ["TOPIC", "▼", "RECORDS/S", "SIZE"]
    assert "TIME LAG" in texts(State(table="groups"), 45)[2]


def test_what_clients_named_cannot_reach_the_terminal() -> None:
    assert "evil�[2J�" in "".join(texts(State()))
    assert "\x1b" not in "\n".join(view.plain(REPORT, State()))


def test_a_problem_stays_on_the_screen_with_the_last_report() -> None:
    shown = texts(State(), problem="no broker answers on localhost:9092: refused (for 3 s)")
    assert shown[1].startswith("no broker answers")
    assert any("orders" in line for line in shown)
    assert texts(State(), report=None)[1] == "waiting for the first answer"
    assert texts(State())[1] == "a note (and 1 more)"


def test_a_pipe_gets_whole_tables() -> None:
    lines = view.plain(REPORT, State(table="groups", sort="record_lag"))
    assert [line.split()[0] for line in lines if line] == [
        *("BROKER", "1", "TOPIC", "evil�[2J�", "audit", "orders", "日本語のトピック名"),
        *("GROUP", "slow", "idle", "note:", "note:"),
    ]
    assert any(
        line.split() == ["slow", "12.3k", "1", "min", "30", "s", "Stable", "-", "-", "1", "consumer"]
        for line in lines
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0, "0"),
        (0.25, "0.2"),
        (999, "999"),
        (1000, "1.0k"),
        (99_950.0, "100k"),
        (2.5e7, "25.0M"),
    ],
)
def test_counts_are_short(value: float | None, text: str) -> None:
    assert view.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0 B"), (1023.0, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_have_units(value: float | None, text: str) -> None:
    assert size(value) == text


def after(state: State, *keys: str) -> State:
    for key in keys:
        changed = press(state, key)
        assert changed is not None
        state = changed
    return state


def test_keys_choose_table_sort_filter_interval_and_pause() -> None:
    assert after(State(), "g").table == "groups"
    assert after(State(), "\t", "\t").table == "brokers"
    assert after(State(), "s", "s", "r") == State(sort="bytes_in_per_s", reverse=True)
    assert after(State(), "s", "b") == State(table="brokers")
    every = len(view.TABLES["topics"])
    assert after(State(), *("s" * every)).sort == "topic"
    assert after(State(), "/", "q", "é", "\x7f", "x", "\r") == State(pattern="qx")
    assert after(State(pattern="a"), "/", "b", "\x1b") == State()
    assert after(State(), "+", "+", "-").interval_s == 5.0
    assert after(State(interval_s=0.5), "-").interval_s == 0.5
    assert after(State(), " ", "i", "?") == State(paused=True, internal=True, help=True)
    assert after(State(first=3), "up", "j", "page up") == State(first=0)
    assert after(State(), "x", "\x1b[15~", "\x00") == State()
    assert press(State(), "q") is None


def test_scrolling_ends_at_the_last_row() -> None:
    state = view.clamped(after(State(), *["page down"] * 5), REPORT, 7)
    assert state.first == 1
    assert view.clamped(State(first=9), None, 7).first == 9
    assert "日本語のトピック名" in texts(state, height=7)[-2]


def test_what_a_terminal_sends_at_once_is_split_into_keys() -> None:
    assert list(split("s\x1b[A\x1bOB\x1b[15~q\x1b[6~\x1b")) == [
        "s",
        "up",
        "down",
        "\x1b[15~",
        "q",
        "page down",
        "\x1b",
    ]

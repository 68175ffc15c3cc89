"""`korvet top`: from the pages of two polls to rows, and to a screen of any size."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from korvet.cli.endpoints import Status, StatusFinding
from korvet.cli.output import size
from korvet.cli.samples import Samples
from korvet.cli.top import BrokerRow, GroupRow, Poll, Report, RequestRow, TopicRow, count, report, screen

PAGE = """\
# HELP kafka_topic_partition_current_offset Records ever appended.
# TYPE kafka_topic_partition_current_offset gauge
kafka_topic_partitions{topic="orders"} 2
kafka_topic_partition_current_offset{topic="orders",partition="0"} %(number)s
kafka_topic_partition_oldest_offset{topic="orders",partition="0"} 40
kafka_topic_partition_under_replicated_partition{topic="orders",partition="0"} 1
kafka_log_log_size{topic="orders",partition="0"} 500
kafka_server_brokertopicmetrics_messagesin_total %(number)s
kafka_server_brokertopicmetrics_messagesin_total{topic="orders"} %(number)s
kafka_server_brokertopicmetrics_bytesin_total %(number)s000
kafka_server_brokertopicmetrics_bytesin_total{topic="orders"} %(number)s000
kafka_server_replicamanager_leadercount 3
kafka_server_socket_server_metrics_connection_count{listener="PLAINTEXT"} 7
kafka_server_socket_server_metrics_connection_count{listener="SSL"} 1
korvet_request_seconds_bucket{request="Produce",le="0.001"} %(fast)s
korvet_request_seconds_bucket{request="Produce",le="0.01"} %(number)s
korvet_request_seconds_bucket{request="Produce",le="+Inf"} %(number)s
korvet_request_seconds_count{request="Produce"} %(number)s
kafka_consumergroup_members{consumergroup="grp"} 2
kafka_consumergroup_group_sum_lag{cluster_name="id",group="grp"} 12
kafka_consumergroup_group_max_lag_seconds{cluster_name="id",group="grp"} 62.5
korvet_consumergroup_info{consumergroup="grp",state="Stable",type="classic",protocol_type="consumer"} 1
korvet_consumergroup_commits_total{consumergroup="grp"} %(number)s
"""
READY = Status({"serving": "ok"}, node_id=1)
FULL = StatusFinding("refused: memory", "fault", "new records: OOM")


def polled(at_s: float, number: int, fast: int, *statuses: Status, name: str = "b:1") -> Poll:
    page = Samples(PAGE % {"number": number, "fast": fast})
    return Poll(at_s, {name: (page, list(statuses or [READY]))}, {})


def test_two_polls_make_rates() -> None:
    found = report(polled(10, 100, 90), polled(14, 140, 128))
    assert found.brokers == (BrokerRow(1, "b:1", "ready", 3, 10.0, 10_000.0, None, 10.0, 8),)
    assert found.topics == (TopicRow("orders", 10.0, 10_000.0, None, 500, 100, 2, 1),)
    assert found.groups == (GroupRow("grp", 12, 62_500, 10.0, 2, "Stable"),)
    assert found.requests == (RequestRow("Produce", 10.0, 10.0),), "38 of 40 within 1 ms are too few"
    assert found.notes == ()


@pytest.mark.parametrize("before", [None, polled(10, 100, 90, name="another:1"), polled(10, 900, 900)])
def test_rates_need_an_earlier_page_of_the_same_broker_since_its_start(before: Poll | None) -> None:
    found = report(before, polled(14, 140, 128))
    (broker,), (topic,), (group,) = found.brokers, found.topics, found.groups
    assert (broker.records_per_s, topic.bytes_in_per_s, group.commits_per_s) == (None, None, None)
    assert (topic.records, group.record_lag) == (100, 12)
    assert found.requests == ()


def test_a_new_topic_began_with_nothing() -> None:
    found = report(polled(10, 100, 90)._replace(pages={"b:1": (Samples(""), [READY])}), polled(14, 140, 128))
    assert found.topics[0].records_per_s == 35.0


def test_a_new_topic_has_a_row_before_its_partitions_are_counted() -> None:
    line = 'kafka_server_brokertopicmetrics_messagesin_total{topic="new"} 8\n'
    found = report(
        polled(10, 100, 90), polled(14, 140, 128)._replace(pages={"b:1": (Samples(line), [READY])})
    )
    assert [(row.topic, row.records_per_s, row.partitions) for row in found.topics] == [("new", 2.0, None)]


def test_a_group_has_one_row_while_its_coordinator_changes() -> None:
    line = 'korvet_consumergroup_info{{consumergroup="grp",state="{}"}} 1\n'
    pages = {
        name: (Samples(line.format(state)), [READY]) for name, state in (("a:1", "Empty"), ("b:1", "Stable"))
    }
    (row,) = report(None, Poll(0, pages, {})).groups
    assert (row.group, row.state) == ("grp", "Stable")


def test_a_share_group_has_the_lag_of_its_queues() -> None:
    page = Samples(
        """\
korvet_consumergroup_info{consumergroup="workers",state="Stable",type="share",protocol_type="share"} 1
korvet_share_group_lag{consumergroup="workers",topic="jobs",partition="0"} 5
korvet_share_group_lag{consumergroup="workers",topic="jobs",partition="1"} 2
korvet_share_group_lag_seconds{consumergroup="workers",topic="jobs",partition="0"} 1.5
korvet_share_group_lag_seconds{consumergroup="workers",topic="jobs",partition="1"} 7
"""
    )
    assert report(None, Poll(0, {"b:1": (page, [READY])}, {})).groups == (
        GroupRow("workers", 7, 7_000, None, None, "Stable"),
    )


def test_a_page_of_several_brokers_has_a_row_for_each() -> None:
    def page(second: int) -> Samples:
        name = "kafka_server_brokertopicmetrics_messagesin_total"
        return Samples(f'{name}{{node_id="1"}} 5\n{name}{{node_id="2"}} {second}\n')

    statuses = [READY, replace(READY, node_id=2)]
    polls = [Poll(at_s, {"b:1": (page(number), statuses)}, {}) for at_s, number in ((0, 10), (2, 30))]
    found = report(*polls)
    assert [(row.node_id, row.records_per_s) for row in found.brokers] == [(1, 0.0), (2, 10.0)]


def test_what_brokers_refuse_and_endpoints_that_do_not_answer_are_notes() -> None:
    statuses = [
        READY,
        replace(READY, node_id=2, findings=[FULL, StatusFinding("replicas", "ok", "none")]),
        Status({"serving": "the broker is\x1b starting", "lease": "ok"}),
    ]
    now = polled(1, 1, 1, *statuses)._replace(problems={"c:1": "c:1: refused"})
    found = report(None, now)
    assert [(row.node_id, row.state, row.alarm) for row in found.brokers] == [
        (2, "refuses", 2),
        (None, "not ready", 2),
        (1, "ready", 0),
    ]
    assert found.notes == (
        "admin endpoint c:1: refused",
        "broker 2, refused: memory: new records: OOM",
        "broker at b:1 is not ready: serving: the broker is\ufffd starting",
    )


def test_partitions_without_a_leader_are_a_note() -> None:
    page = Samples("kafka_controller_kafkacontroller_offlinepartitionscount 3\n")
    assert report(None, Poll(0, {"b:1": (page, [READY])}, {})).notes == ("3 partitions have no leader",)


def test_labels_are_unescaped_and_other_lines_skipped() -> None:
    page = Samples('m{a="x\\"\\\\\\ny",b="1"} 2\nm{a="z"} nothing\n\nno sample\nm{a="x\\"\\\\\\ny"} 3 99\n')
    sums = page.sums("m", "a")
    assert sums[('x"\\\ny',)] == 5
    assert sums["z",] != sums["z",], "not a number"
    assert page.sums("none") == {}


MANY = Report(
    0,
    tuple(BrokerRow(number, f"b:{number}", "ready", 1, 1.0, 1.0, None, 1.0, 1) for number in range(9)),
    (
        TopicRow("日本語のトピック名-evil\x1b[2J\n", 9.0, 9e9, 9e9, 1 << 40, 10**9, 1000, 1000),
        *(TopicRow(f"a-topic-{number}", 1.0, 1.0, 1.0, 1, 1, 1, 0) for number in range(100)),
    ),
    (
        GroupRow("slow", 12_345, 90_000, 1.0, 1, "Stable"),
        *(GroupRow(f"idle-{number}", 0, 0, None, None, "Empty") for number in range(100)),
    ),
    tuple(RequestRow(f"Request{number}", 9.0, 0.5) for number in range(20)),
    tuple(f"note {number}" for number in range(5)),
)


def drawn(found: Report, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, highlight=False)
    with console.capture() as capture:
        console.print(screen(found, width, height, 2.0))
    return capture.get().splitlines()


def test_80_by_24_shows_some_of_each_and_what_alarms() -> None:
    lines = drawn(MANY, 80, 24)
    assert len(lines) == 24
    text = "\n".join(lines)
    for words in ("2 more notes", "(4 of 9)", "(4 of 101)", "UNDER-REPL.", "slow", "1 min 30 s", "0.5 ms"):
        assert words in text
    assert "evil\ufffd[2J\ufffd" in text
    assert "\x1b" not in text


def test_rows_that_are_not_there_leave_their_room_to_others() -> None:
    few = replace(MANY, brokers=MANY.brokers[:1], groups=(), requests=(), notes=())
    lines = drawn(few, 80, 24)
    assert len(lines) == 24
    assert "(18 of 101)" in "\n".join(lines)


@pytest.mark.parametrize("width", range(20, 160, 14))
@pytest.mark.parametrize("height", [1, 8, 12, 40])
def test_no_line_is_wider_than_the_terminal(width: int, height: int) -> None:
    lines = drawn(MANY, width, height)
    assert [line for line in lines if cell_len(line) > width] == []
    assert len(lines) <= max(height, 13)


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
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0 B"), (1023.0, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_have_units(value: Any, text: str) -> None:
    assert size(value) == text

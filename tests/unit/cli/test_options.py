"""Values of options: times, durations, partitions."""

from __future__ import annotations

import click
import pytest

from korvet.cli.options import Duration, PartitionOffset, Places, Time, TopicPartitions


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90m", 5_400_000),
        ("1d12h", 129_600_000),
        ("1.5s", 1_500),
        ("0s", 0),
        ("PT1H30M", 5_400_000),
        ("P1DT1S", 86_401_000),
        ("p2d", 172_800_000),
    ],
)
def test_durations(text: str, ms: int) -> None:
    assert Duration()(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "T", "10", "P1M", "500ms", "-1h", "1h1d", "9" * 400 + "s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a duration"):
        Duration()(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T02:00:00.5+01:00", 3_600_500),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert Time()(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "1969-12-31T23:59:59.999", "2026-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected a time"):
        Time()(text)


def test_partitions() -> None:
    assert TopicPartitions()("t") == Places("t", None)
    assert TopicPartitions()("t:0,3") == Places("t", frozenset({0, 3}))
    assert PartitionOffset()("3=17") == (3, 17)


@pytest.mark.parametrize("text", ["t:", "t:-1", "t:1,", "t:\u0663", "t:" + "9" * 5000])
def test_what_are_no_partitions(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected TOPIC or TOPIC:PARTITION"):
        TopicPartitions()(text)


@pytest.mark.parametrize("text", ["", "0", "0=", "=1", "0=-1", "x=1"])
def test_what_is_no_offset_of_a_partition(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected PARTITION=OFFSET"):
        PartitionOffset()(text)

"""The durations of share.auto.offset.reset, as java.time.Duration reads them."""

from __future__ import annotations

import pytest

from korvet.groups.own_configs import reset_age_ms

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [
        ("PT0S", 0),
        ("PT1H", 3_600_000),
        ("P1D", DAY_MS),
        ("P2DT3H4M5.678S", 2 * DAY_MS + 3 * 3_600_000 + 4 * 60_000 + 5_678),
        ("pt1,5s", 1_500),
        ("+PT+1S", 1_000),
        ("-PT-2S", 2_000),
        ("PT1H-1M", 3_540_000),
        ("PT0.000000001S", 0),
        ("PT-1.5S", None),
        ("-PT1S", None),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("P1Y", None),
        ("P1W", None),
        ("PT1.0000000001S", None),
        ("PT1.5M", None),
        ("1h", None),
        ("", None),
    ],
)
def test_durations(text: str, age_ms: int | None) -> None:
    assert reset_age_ms(f"by_duration:{text}") == age_ms


@pytest.mark.parametrize("reset", ["latest", "earliest", "none", "PT1H", "by_duration"])
def test_other_resets_have_no_age(reset: str) -> None:
    assert reset_age_ms(reset) is None

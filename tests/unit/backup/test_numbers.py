"""The numbers of a restored keyspace are above all that clients may have seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from korvet.backup.numbers import raised

CREATED_MS = 1_700_000_000_000
COUNTERS = ("assignment", "next_producer_id", "catalogue", "security")


def hash_of(**fields: int) -> dict[bytes, bytes]:
    return {name.encode(): b"%d" % value for name, value in fields.items()}


@given(
    st.fixed_dictionaries({}, optional={name: st.integers(0, 2**50) for name in COUNTERS}),
    st.integers(0, 10**12),
)
def test_every_number_grows(stored: dict[str, int], age_ms: int) -> None:
    now_ms = CREATED_MS + age_ms
    found = raised(hash_of(created_ms=CREATED_MS, **stored), now_ms)
    assert set(found) == set(COUNTERS)
    for name in COUNTERS:
        assert found[name] >= stored.get(name, 0)
    assert found["assignment"] > stored.get("assignment", -1)
    assert found["assignment"] > age_ms // 1000
    assert found["next_producer_id"] >= now_ms * 1024


def test_an_old_backup_is_above_a_keyspace_that_went_on() -> None:
    """Brokers joined 500 times in the first minute and a hundred times in the hour after it."""
    backup = hash_of(created_ms=CREATED_MS, assignment=3)
    assert raised(backup, CREATED_MS + 3_660_000)["assignment"] > 600


def test_a_restore_of_an_older_backup_is_above_the_restore_of_a_newer_one() -> None:
    older = hash_of(created_ms=CREATED_MS, assignment=2)
    first = raised(hash_of(created_ms=CREATED_MS, assignment=9), CREATED_MS + 60_000)["assignment"]
    # Brokers joined ten times, and a third backup was restored.
    newer = hash_of(created_ms=CREATED_MS, assignment=first + 10)
    second = raised(newer, CREATED_MS + 120_000)["assignment"]
    assert second > first + 10
    assert raised(older, CREATED_MS + 180_000)["assignment"] > second + 1


def test_a_keyspace_of_an_earlier_release_does_not_know_its_age() -> None:
    assert raised(hash_of(assignment=5000), CREATED_MS)["assignment"] == 5064
    assert raised({}, CREATED_MS)["assignment"] == 1024


def test_the_clock_may_be_before_the_keyspace_was_made() -> None:
    assert raised(hash_of(created_ms=CREATED_MS, assignment=7), 0)["assignment"] == 1024

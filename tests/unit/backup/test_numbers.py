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
    st.integers(-(10**12), 10**12),
)
def test_every_number_grows(stored: dict[str, int], since_ms: int) -> None:
    now_ms = CREATED_MS + since_ms
    found = raised(hash_of(**stored), CREATED_MS, now_ms, 0)
    assert set(found) == {*COUNTERS, "first_producer_id"}
    for name in COUNTERS:
        assert found[name] >= stored.get(name, 0)
    assert found["assignment"] >= stored.get("assignment", 0) + (1 << 22)
    assert found["next_producer_id"] == found["first_producer_id"] >= now_ms * 1024
    assert min(found["catalogue"], found["security"]) >= now_ms


@given(st.integers(0, 30 * 86_400), st.integers(0, 30 * 86_400), st.integers(0, 86_400))
def test_a_restore_of_an_older_backup_is_above_the_restore_of_a_newer_one(
    between_s: int, since_s: int, later_s: int
) -> None:
    """Versions have grown by at most five per second between the backups, and since the first restore."""
    older, newer = hash_of(assignment=7), hash_of(assignment=7 + 5 * between_s)
    newer_ms = CREATED_MS + between_s * 1000
    now_ms = newer_ms + since_s * 1000
    first = raised(newer, newer_ms, now_ms, 0)["assignment"]
    second = raised(older, CREATED_MS, now_ms + later_s * 1000, 0)["assignment"]
    assert second >= first + 5 * later_s


def test_the_numbers_of_an_empty_keyspace() -> None:
    assert raised({}, CREATED_MS, CREATED_MS, 0)["assignment"] == 1 << 22


@given(st.integers(0, 30 * 365 * 86_400), st.integers(0, 30 * 86_400), st.integers(0, 30 * 86_400))
def test_versions_are_above_those_after_failovers(age_s: int, since_s: int, later_s: int) -> None:
    """In a new history, versions begin at the seconds since the keyspace was made: korvet_lease."""
    made = hash_of(assignment=7, created_ms=CREATED_MS - age_s * 1000)
    failover_s = age_s + since_s + 320
    now_ms = CREATED_MS + (since_s + later_s) * 1000
    assert raised(made, CREATED_MS, now_ms, 0)["assignment"] > failover_s + 5 * later_s


@given(st.integers(0, 100), st.integers(1, 100), st.integers(0, 86_400))
def test_later_restores_of_one_backup_are_above_earlier_ones(earlier: int, more: int, since_s: int) -> None:
    """Also at the same time, and if the restored keyspace has had tens of thousands of versions."""
    now_ms = CREATED_MS + since_s * 1000
    first, second = (
        raised(hash_of(assignment=7), CREATED_MS, now_ms, number)["assignment"]
        for number in (earlier, earlier + more)
    )
    assert second >= first + more * 60_000


def test_an_older_backup_is_above_a_restored_backup_of_an_earlier_restore() -> None:
    """Monday is restored, Tuesday is a backup of that keyspace and is restored, then Monday again."""
    day_ms = 86_400_000
    monday = hash_of(assignment=7)
    first = raised(monday, CREATED_MS, CREATED_MS + day_ms // 2, 0)["assignment"]
    tuesday_ms = CREATED_MS + day_ms
    restored = hash_of(assignment=first + 3, first_producer_id=1)
    second = raised(restored, tuesday_ms, tuesday_ms + day_ms // 2, 0)["assignment"]
    third = raised(monday, CREATED_MS, tuesday_ms + day_ms // 2 + 3_600_000, 1)["assignment"]
    assert third > second + 60_000


def test_a_restored_keyspace_may_have_had_many_versions_since_its_backup() -> None:
    day_ms = 86_400_000
    cluster = hash_of(assignment=18_000_000, created_ms=CREATED_MS, first_producer_id=1)
    now = raised(cluster, CREATED_MS + day_ms, CREATED_MS + 31 * day_ms, 0)
    assert now["assignment"] > 18_000_000 + 30 * 86_400 * 4

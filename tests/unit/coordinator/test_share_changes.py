"""Changes of share groups' states that wait to be written."""

from __future__ import annotations

import msgspec

from korvet.coordinator.share_changes import ShareChange, ShareChanges
from korvet.groups.share.messages import SharePartition

PLACE, OTHER = (SharePartition("g", b"t" * 16, "orders", number) for number in range(2))


def test_changes_of_one_state_are_one() -> None:
    changes = ShareChanges()
    changes.changed(PLACE)
    changes.changed(PLACE, [(1, 2)])
    changes.changed(OTHER)
    changes.changed(PLACE, [(5, 5)])
    assert changes.take() == [ShareChange(PLACE, given_up=[(1, 2), (5, 5)]), ShareChange(OTHER)]
    assert changes.take() == []


def test_what_was_made_or_removed_counts_over_what_was_before() -> None:
    changes = ShareChanges()
    changes.changed(PLACE, [(1, 2)])
    changes.removed(PLACE)
    changes.changed(PLACE)
    assert changes.take() == [ShareChange(PLACE, gone=True)]
    changes.removed(PLACE)
    changes.begun(PLACE, 7)
    changes.changed(PLACE, [(3, 3)])
    assert changes.take() == [ShareChange(PLACE, 7, given_up=[(3, 3)])]


def test_what_could_not_be_written_waits_with_what_came_later() -> None:
    changes = ShareChanges()
    changes.begun(PLACE, 7)
    changes.changed(PLACE, [(1, 1)])
    changes.changed(OTHER)
    taken = changes.take()
    changes.changed(PLACE, [(2, 2)])
    changes.removed(OTHER)
    changes.put_back(taken)
    assert changes.take() == [
        ShareChange(PLACE, 7, given_up=[(1, 1), (2, 2)]),
        ShareChange(OTHER, gone=True),
    ]


def test_what_is_kept_of_a_state_is_bounded() -> None:
    changes = ShareChanges()
    for number in range(60):
        changes.changed(PLACE, [(number, number)] * 3)
    (change,) = changes.take()
    assert len(change.given_up) == 100
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change), type=ShareChange) == change

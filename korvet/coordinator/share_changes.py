"""The partitions of share groups whose states have changed since they were written to `__share_group_state`.
No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from korvet.groups.share.messages import SharePartition  # noqa: TC001 - decoded

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of one partition. Without the others, records that were given up look acknowledged.
_MOST_RANGES: Final = 100


class ShareChange(msgspec.Struct, array_like=True):
    """What is known of a change."""

    place: SharePartition
    group_epoch: int | None = None
    """If the state was made (anew): the epoch of the group, 0 if it is not known."""
    gone: bool = False
    """Whether the state was removed."""
    given_up: list[tuple[int, int]] = []
    """Offsets, both ends included, that are archived unless they are pending."""

    def add(self, later: ShareChange) -> ShareChange:
        """Both changes in one."""
        if later.gone or later.group_epoch is not None:
            return later
        self.given_up += later.given_up[: _MOST_RANGES - len(self.given_up)]
        return self


class ShareChanges:
    """Collects changes until they are taken."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: dict[SharePartition, ShareChange] = {}

    def changed(self, place: SharePartition, given_up: Iterable[tuple[int, int]] = ()) -> None:
        """Records of a partition were delivered, acknowledged or released. given_up: see ShareChange."""
        known = self._changes.get(place)
        if known is None:
            known = self._changes[place] = ShareChange(place)
        if given_up:
            known.add(ShareChange(place, given_up=list(given_up)))

    def begun(self, place: SharePartition, group_epoch: int = 0) -> None:
        """The state of a partition was made, in place of the one before."""
        self._changes[place] = ShareChange(place, group_epoch)

    def removed(self, place: SharePartition) -> None:
        """The state of a partition was removed."""
        self._changes[place] = ShareChange(place, gone=True)

    def take(self) -> list[ShareChange]:
        """All changes, which are not kept any more."""
        taken, self._changes = self._changes, {}
        return list(taken.values())

    def put_back(self, changes: Iterable[ShareChange]) -> None:
        """Keep changes that could not be written."""
        for change in changes:
            later = self._changes.get(change.place)
            self._changes[change.place] = change if later is None else change.add(later)

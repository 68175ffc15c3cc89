"""The states of a classic group and the transitions between them.

    Empty ──first joins──► PreparingRebalance ──all joined──► CompletingRebalance ──leader synced──► Stable
      ▲                      │   ▲                                   │                                │
      └───nobody is left─────┘   └──────────── a member comes, goes or changes ───────────────────────┘

Dead is the state that a group without a record is described with; no group enters it.
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """A state; the value is the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


PREDECESSORS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


class IllegalTransition(Exception):
    """An illegal change of a group's state: a defect of korvet."""

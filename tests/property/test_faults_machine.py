"""The table of faults beside a list of them, under any sequence of faults, requests and clears."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from korvet.faults.table import Action, Fault, FaultTable

APIS = st.sampled_from(["Produce", "Fetch"])
CLIENTS = st.sampled_from(["a", "b"])
TIMES = st.none() | st.integers(1, 3)
FAULTS = st.tuples(APIS, TIMES, st.none() | CLIENTS).map(
    lambda drawn: Fault(api=drawn[0], action=Action.IGNORE, times=drawn[1], client_id=drawn[2])
)


class FaultsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = FaultTable()
        self.expected: list[tuple[int, Fault, int]] = []
        self.numbers: set[int] = set()

    @rule(fault=FAULTS)
    def add(self, fault: Fault) -> None:
        added = self.table.add(fault)
        assert added.number not in self.numbers
        assert (added.fault, added.met, added.left) == (fault, 0, fault.times)
        self.numbers.add(added.number)
        self.expected.append((added.number, fault, 0))

    @rule(api=APIS, client_id=CLIENTS)
    def request(self, api: str, client_id: str) -> None:
        """A request meets the first fault that matches it, if that has requests left."""
        fitting = [
            place
            for place, (_, fault, met) in enumerate(self.expected)
            if fault.api == api
            and fault.client_id in (None, client_id)
            and (fault.times is None or met < fault.times)
        ]
        armed = self.table.armed(api, client_id)
        assert [each.number for each in armed] == [self.expected[place][0] for place in fitting]
        if armed:
            self.table.meet(armed[0].number)
            number, fault, met = self.expected[fitting[0]]
            self.expected[fitting[0]] = number, fault, met + 1

    @rule()
    def clear(self) -> None:
        self.table.clear()
        self.expected = []

    @invariant()
    def all_are_listed(self) -> None:
        assert [(each.number, each.fault, each.met) for each in self.table] == self.expected
        for each in self.table:
            times = each.fault.times
            assert each.left == (None if times is None else times - each.met)
            assert each.left is None or each.left >= 0


TestFaults = FaultsMachine.TestCase

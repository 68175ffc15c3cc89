"""maxRedisCpu: tasks that don't know of each other keep the load of a server at a bound, and give way."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from korvet.spark.source.address import Address, Secret
from korvet.spark.source.connection import SourceConnection, connected, cpu_seconds
from korvet.spark.source.errors import SourceError
from korvet.spark.source.pages import pages
from korvet.spark.source.restraint import (
    FIRST_INTERVAL_S,
    FORGOTTEN_S,
    LONGEST_INTERVAL_S,
    WINDOW_S,
    Restraint,
    restraint_of,
)
from tests.spark.direct import batch, tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.spark.keyspace import Keyspace

PAGE_S = 0.0015
SETTLED_S = 5.0
END_S = 25.0


@dataclass
class Simulation:
    """A server that other clients keep busy for a part of its time, and tasks that read its pages."""

    others: Callable[[float], float]
    pages: int = 0
    others_s: float = 0.0
    now_s: float = 0.0
    asked: list[float] = field(default_factory=list)

    def busy_s(self) -> float:
        return self.others_s + self.pages * PAGE_S

    def run(self, tasks: list[tuple[float, Restraint]], until_s: float) -> None:
        """tasks: the time when each one starts. Redis serves one page after the other."""
        waiting = [(start_s, number) for number, (start_s, _) in enumerate(tasks)]
        heapq.heapify(waiting)
        free_s = 0.0
        while waiting[0][0] < until_s:
            at_s, number = heapq.heappop(waiting)
            self.others_s += self.others(at_s) * (at_s - self.now_s)
            self.now_s = at_s
            pause_s = tasks[number][1].pause_s(at_s, self.busy_s)
            if not pause_s:
                free_s = max(free_s, at_s) + PAGE_S
                self.pages += 1
                self.asked.append(at_s)
                pause_s = free_s - at_s
            heapq.heappush(waiting, (at_s + pause_s, number))

    def load_between(self, first_s: float, last_s: float) -> float:
        """The part of the server's time that pages took."""
        return PAGE_S * sum(first_s <= at_s < last_s for at_s in self.asked) / (last_s - first_s)


@pytest.mark.parametrize("tasks", [1, 2, 16, 100])
@pytest.mark.parametrize("bound", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("others", [0.0, 0.05])
def test_any_number_of_tasks_keeps_the_bound(tasks: int, bound: float, others: float) -> None:
    simulated = Simulation(lambda _: others)
    # Tasks of a job start at about the same time.
    simulated.run([(number * 0.01, Restraint(bound)) for number in range(tasks)], END_S)
    load = others + simulated.load_between(SETTLED_S, END_S)
    assert load == pytest.approx(bound, rel=0.15)


def test_tasks_come_and_go() -> None:
    simulated = Simulation(lambda _: 0.1)
    restraints = [Restraint(0.5) for _ in range(6)]
    simulated.run([(0.0, one) for one in restraints[:2]], 10.0)
    simulated.run([(10.0, one) for one in restraints], 20.0)
    simulated.run([(20.0, restraints[5])], 30.0)
    for end_s in (10.0, 20.0, 30.0):
        assert 0.1 + simulated.load_between(end_s - 5, end_s) == pytest.approx(0.5, rel=0.15), end_s


def test_tasks_give_way_to_others(caplog: pytest.LogCaptureFixture) -> None:
    simulated = Simulation(lambda at_s: 0.2 if at_s < 10 else 0.8)
    simulated.run([(0.0, Restraint(0.5)) for _ in range(4)], 60.0)
    assert simulated.load_between(5, 10) == pytest.approx(0.3, rel=0.15)
    assert simulated.load_between(15, 60) < 0.01
    # Each task reads a page now and then.
    assert sum(at_s > 60 - 2 * LONGEST_INTERVAL_S for at_s in simulated.asked) >= 4
    assert "busy for 80 % of its time, mostly with others, and maxRedisCpu is 0.5" in caplog.text
    assert len(caplog.records) == 4


def test_an_idle_server_is_read_at_full_speed() -> None:
    restraint, simulated = Restraint(1.0), Simulation(lambda _: 0.0)
    simulated.run([(0.0, restraint)], 2.0)
    assert simulated.load_between(1.0, 2.0) > 0.95


def test_tasks_of_a_process_go_on_at_the_same_pace() -> None:
    restraint = restraint_of("here:1", 0.5)
    assert restraint_of("here:1", 0.5) is restraint
    assert len({restraint, restraint_of("here:2", 0.5), restraint_of("here:1", 0.4)}) == 3
    Simulation(lambda _: 0.0).run([(0.0, restraint)], 5.0)
    settled_s = restraint.interval_s
    assert settled_s < FIRST_INTERVAL_S
    restraint.pause_s(5.5, lambda: 2.5)
    assert restraint.interval_s == pytest.approx(settled_s, rel=0.5)
    restraint.pause_s(5.5 + 2 * FORGOTTEN_S, lambda: 2.5)
    assert restraint.interval_s == FIRST_INTERVAL_S


def test_the_load_is_measured_once_per_window() -> None:
    measured = []
    restraint = Restraint(0.5)
    for step in range(1000):
        restraint.pause_s(step * WINDOW_S / 100, lambda: float(measured.append(None) or 0))  # type: ignore[func-returns-value]
    assert len(measured) == 10


def test_main_thread_comes_before_the_whole_server() -> None:
    whole = b"# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_user:2.25\r\n"
    assert cpu_seconds(whole) == 3.75
    assert cpu_seconds(whole + b"used_cpu_sys_main_thread:0.5\r\nused_cpu_user_main_thread:1\r\n") == 1.5
    with pytest.raises(SourceError, match="used_cpu_user"):
        cpu_seconds(b"# CPU\r\n")


FILL = """
for number = 1, tonumber(ARGV[1]) do
    redis.call('XADD', KEYS[1], string.format('%d-0', 1700000000000 + number), 'value', 'v')
end
"""


def test_a_task_keeps_the_bound_of_a_real_server(keyspace: Keyspace) -> None:
    """Read without the bound, these records keep Redis busy for most of the time."""
    keyspace.topic("t")
    keyspace.client.eval(FILL, 1, "korvet:t:0", 100_000)
    (task,) = tasks(keyspace, topic="t")
    (part,) = task.ranges
    bound = 0.05

    def busy_s() -> float:
        used = keyspace.client.info("cpu")
        return float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])

    entries, measured = 0, []
    with connected(Address(keyspace.url, max_cpu=bound)) as connection:
        for page in pages(connection, part):
            entries += len(page)
            measured.append((time.monotonic(), busy_s()))
    assert entries == 100_000
    # The second half of the time: in the first one the task measures the load.
    (began_s, before_s), (ended_s, after_s) = measured[len(measured) // 2], measured[-1]
    assert (after_s - before_s) / (ended_s - began_s) < 2 * bound


def test_a_bound_changes_no_rows(keyspace: Keyspace) -> None:
    keyspace.topic("t", 2)
    for number in range(1000):
        keyspace.record("t", number % 2, (1_700_000_000_000 + number) << 10, b"%d" % number)
    assert len(batch(keyspace, topic="t")) == 1000
    assert batch(keyspace, topic="t", maxRedisCpu="0.9") == batch(keyspace, topic="t")


def test_the_driver_needs_info(keyspace: Keyspace) -> None:
    user = ["reset", "on", ">secret", "~*", "+@read", "+@connection", "+xinfo"]
    keyspace.client.execute_command("ACL", "SETUSER", "reader", *user)
    address = Address(keyspace.url, user="reader", password=Secret(value="secret"))
    try:
        SourceConnection(address).close()
        with pytest.raises(SourceError, match=r"maxRedisCpu needs INFO, which Redis .* refuses"):
            SourceConnection(replace(address, max_cpu=0.5))
    finally:
        keyspace.client.execute_command("ACL", "DELUSER", "reader")

"""Carries out a plan: servers, clients, faults at their times, and the last reads."""

from __future__ import annotations

import heapq
import itertools
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from robustness import plan as plans
from robustness.clients import Recorder
from robustness.history import HISTORY, Fault, Run, Stuck, Writer
from robustness.load.administrator import Administrator, create_topics
from robustness.load.aio import AioMemberWorker, AioProducerWorker
from robustness.load.epochs import EpochAsker
from robustness.load.final import FinalReader
from robustness.load.java import JavaMember, JavaProducer
from robustness.load.members import CopyWorker, MemberWorker
from robustness.load.natives import NativeReader, NativeSharer, NativeWriter
from robustness.load.producers import ProducerWorker
from robustness.load.sharers import SharerWorker, begin_with_first_records, catch_up
from robustness.site.faults import FAULTS
from robustness.site.site import Site
from tests.support.servers import BROKER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from robustness.load.worker import Worker
    from robustness.plan import FaultPlan, GroupPlan, Plan

TICK_S: Final = 0.1
# Longer than any timeout of a client or a session, on a busy machine.
RECOVERY_TIMEOUT_S: Final = 60.0
# Limits the time of a run in addition to the duration of its plan.
LONGEST_S: Final = 600.0


def run(plan: Plan, folder: Path, program: Sequence[str] = BROKER) -> Path:
    """Carry out a plan with brokers of this program.

    Returns the path of its history; logs stay beside it.
    """
    path = folder / HISTORY
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    site = Site(plan, folder, program)
    with Writer(path) as writer:
        recorder = Recorder(writer)
        try:
            site.start()
            recorder.add(Run, "runner", "info", **plans.first_event(plan))
            create_topics(site.bootstrap, plan.topics)
            for sharers in plan.sharers:
                begin_with_first_records(site.bootstrap, sharers)
            workers = list(workers_of(plan, site, recorder))
            for worker in workers:
                worker.start()
            Director(plan, site, recorder).direct()
            see_progress(workers, recorder)
            for worker in workers:
                worker.closing.set()
            for worker in workers:
                worker.close()
            site.topology.settle()
            final = FinalReader(recorder, site.bootstrap, site.topology)
            partitions = final.read(plan.topics, [group.name for group in plan.groups])
            for sharers in plan.sharers:
                catch_up(recorder, site.bootstrap, sharers, partitions, RECOVERY_TIMEOUT_S)
        finally:
            site.stop()
    return path


def see_progress(workers: Sequence[Worker], recorder: Recorder) -> None:
    """Wait until every subject has made progress after the last fault, and record those that don't."""
    began = time.monotonic()
    before = _progress(workers)
    left = set(before)
    while left and time.monotonic() < began + RECOVERY_TIMEOUT_S:
        time.sleep(TICK_S)
        left = {subject for subject, count in _progress(workers).items() if count == before[subject]}
    for subject in sorted(left):
        recorder.add(Stuck, "runner", "info", subject=subject, waited_s=RECOVERY_TIMEOUT_S)


def _progress(workers: Sequence[Worker]) -> Counter[str]:
    """Returns the number of records of each subject."""
    found: Counter[str] = Counter()
    for worker in workers:
        if worker.subject is not None:
            found[worker.subject] += worker.progress
    return found


def workers_of(plan: Plan, site: Site, recorder: Recorder) -> Iterator[Worker]:
    """Yields all clients."""
    partitions = {topic.name: topic.partitions for topic in plan.topics}
    for number, producer in enumerate(plan.producers):
        match producer.client:
            case "java":
                yield JavaProducer(recorder, site.bootstrap, producer, site.folder / "java", number)
            case "aiokafka":
                yield AioProducerWorker(recorder, site.bootstrap, producer, partitions, plan.seed)
            case _:
                yield ProducerWorker(recorder, site.bootstrap, producer, partitions, plan.seed)
    for group in plan.groups:
        for number in range(1, group.members + 1):
            yield _member(plan, site, recorder, group, number)
    for sharers in plan.sharers:
        for number in range(1, sharers.members + 1):
            yield SharerWorker(recorder, site.bootstrap, sharers, number, plan.seed)
        places = [
            (topic.name, partition)
            for topic in plan.topics
            if topic.name in sharers.topics and topic.is_native
            for partition in range(topic.partitions)
        ]
        for number in range(1, sharers.natives + 1) if places else ():
            yield NativeSharer(recorder, site.topology, sharers, places, number, plan.seed)
    for native in plan.natives:
        if native.writes_per_s:
            yield NativeWriter(recorder, site.topology, native, partitions[native.topic], plan.seed)
        for partition in range(partitions[native.topic]):
            yield NativeReader(recorder, site.topology, native, partition)
    yield EpochAsker(recorder, site.bootstrap, partitions, plan.seed)
    yield Administrator(recorder, site.bootstrap, plan.admins)


def _member(plan: Plan, site: Site, recorder: Recorder, group: GroupPlan, number: int) -> Worker:
    """Returns a member of a group."""
    if group.client == "java":
        return JavaMember(recorder, site.bootstrap, group, number, site.folder / "java")
    if group.client == "aiokafka":
        return AioMemberWorker(recorder, site.bootstrap, group, number)
    if group.copies_to is not None:
        return CopyWorker(recorder, site.bootstrap, group, number)
    return MemberWorker(recorder, site.bootstrap, group, number, plan.seed)


class Director:
    """Begins and ends the faults at their times, and records both."""

    def __init__(self, plan: Plan, site: Site, recorder: Recorder) -> None:
        self._plan, self._site, self._record = plan, site, recorder

    def direct(self) -> None:
        """Take all steps. Returns when all faults have ended and all brokers serve."""
        began = time.monotonic()
        order = itertools.count()
        steps = [(fault.at_ms, next(order), fault, self._happen(fault)) for fault in self._plan.faults]
        heapq.heapify(steps)
        while steps:
            at_ms, _, fault, happening = heapq.heappop(steps)
            self._wait(began + at_ms / 1000)
            if next(happening, self) is not self:
                heapq.heappush(steps, (fault.end_ms, next(order), fault, happening))
        self._wait(began + self._plan.duration_ms / 1000)
        self._site.wait_for_brokers()

    def _wait(self, until: float) -> None:
        """Wait for a time. Brokers that end by themselves start again."""
        while True:
            for name in self._site.revive():
                self._note("exit", name, "begin", "the broker ended by itself")
                self._note("exit", name, "end")
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, TICK_S))

    def _happen(self, fault: FaultPlan) -> Iterator[None]:
        """One fault: begins, yields, and ends."""
        happening = FAULTS[fault.kind](self._site, fault)
        self._note(fault.kind, fault.target, "begin", f"strength {fault.strength}" if fault.strength else "")
        next(happening)
        yield
        next(happening, None)
        self._note(fault.kind, fault.target, "end")

    def _note(self, kind: str, target: str, phase: str, detail: str = "") -> None:
        self._record.add(Fault, "runner", "info", kind=kind, target=target, phase=phase, detail=detail)

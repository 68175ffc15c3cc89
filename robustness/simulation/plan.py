"""Plans of simulated runs: short versions of those of robustness runs, for servers that can be simulated."""

from __future__ import annotations

from typing import Final, Literal

from robustness import plan as robustness
from robustness.dice import Dice
from robustness.plan import (
    COPIES,
    FAULT_KINDS,
    AdminPlan,
    FaultKind,
    FaultPlan,
    GroupPlan,
    NativePlan,
    Plan,
    ProducerPlan,
    TopicPlan,
    TopologyName,
    draw_fault,
    draw_next_ms,
    draw_sharers,
)

TOPOLOGIES: Final[tuple[TopologyName, ...]] = ("alone", "pair")
COPIES_TOPIC: Final = "copies"
DURATION_MS: Final = (1_000, 4_000)
# The first fault begins when topics exist and clients have connected.
FIRST_FAULT_MS: Final = 300
PAUSE_MS: Final = (50, 1_500)
# A longer fault shows nothing new: leases, sessions and timeouts are shorter in simulated runs.
LONGEST_FAULT_MS: Final = 3_000
NOT_SIMULATED: Final = frozenset({"disk_full", "pause_primary"})
# The host of the server loses its power, and all that is not on its disk. Topics and groups ask for fsync.
POWER_LOSS: Final = FaultKind("power_loss", ("alone",), ("primary",), (300, 2_000), "unreplicated", weight=2)
KINDS: Final = tuple(
    kind for kind in (*FAULT_KINDS, POWER_LOSS) if kind.name not in NOT_SIMULATED for _ in range(kind.weight)
)
# Plans look there for what a fault may lose.
robustness.KINDS[POWER_LOSS.name] = POWER_LOSS


def make(seed: int) -> Plan:
    """Returns the plan of a seed."""
    dice = Dice(seed, "simulated setting")
    topology = dice.one_of(TOPOLOGIES)
    brokers = dice.one_of((1, 2, 2, 3))
    topics = _topics(dice, topology)
    duration_ms = dice.between(*DURATION_MS)
    return Plan(
        seed=seed,
        duration_ms=duration_ms,
        topology=topology,
        brokers=brokers,
        replica_lag_ms=0 if topology == "alone" else dice.one_of((0, 0, 20, 100, 500)),
        topics=topics,
        producers=_producers(dice, topics),
        groups=_groups(dice, topics),
        natives=_natives(dice, topics),
        sharers=draw_sharers(Dice(seed, "simulated sharers"), topics, 1_000),
        admins=_admins(Dice(seed, "simulated admin"), topics, duration_ms),
        faults=_faults(Dice(seed, "simulated faults"), topology, brokers, duration_ms),
    )


def asks_for_fsync(plan: Plan) -> bool:
    """Whether acknowledged records and commits must be on the disk."""
    return any(fault.kind == POWER_LOSS.name for fault in plan.faults)


def _topics(dice: Dice, topology: TopologyName) -> tuple[TopicPlan, ...]:
    copies = COPIES[topology]
    topics = [TopicPlan("kept", dice.between(1, 2), dice.one_of(("clock", "dense")), copies)]
    if dice.chance(0.4):
        layout: Literal["record", "batch"] = "batch" if dice.chance(0.3) else "record"
        level = dice.between(1, copies)
        topics.append(TopicPlan("other", 1, dice.one_of(("clock", "dense")), level, layout))
    if dice.chance(0.2):
        topics.append(TopicPlan(COPIES_TOPIC, 1, dice.one_of(("clock", "dense")), copies))
    return tuple(topics)


def _producers(dice: Dice, topics: tuple[TopicPlan, ...]) -> tuple[ProducerPlan, ...]:
    names = tuple(topic.name for topic in topics if topic.name != COPIES_TOPIC)
    producers = []
    for number in range(dice.between(1, 3)):
        kind: Literal["plain", "idempotent", "transactional"]
        kind = dice.one_of(("plain", "idempotent", "idempotent", "transactional", "transactional"))
        producers.append(
            ProducerPlan(
                name=f"producer-{number}",
                client="simulated",
                kind=kind,
                topics=names,
                acks=dice.one_of((1, -1)) if kind == "plain" else -1,
                rate_per_s=dice.one_of((3, 10)),
                linger_ms=0,
                abort_percent=dice.one_of((0, 10, 50)) if kind == "transactional" else 0,
            )
        )
    return tuple(producers)


def _groups(dice: Dice, topics: tuple[TopicPlan, ...]) -> tuple[GroupPlan, ...]:
    names = tuple(topic.name for topic in topics)
    copies_to = COPIES_TOPIC if COPIES_TOPIC in names else None
    if copies_to is None and dice.chance(0.25):
        return ()
    return (
        GroupPlan(
            name="group-0",
            client="simulated",
            protocol=dice.one_of(("classic", "consumer")),
            members=dice.between(1, 2),
            topics=tuple(name for name in names if name != copies_to),
            isolation="read_committed" if copies_to else dice.one_of(("read_committed", "read_uncommitted")),
            commit_interval_ms=dice.one_of((100, 500)),
            restart_interval_ms=dice.one_of((0, 0, 1_000)),
            copies_to=copies_to,
        ),
    )


def _natives(dice: Dice, topics: tuple[TopicPlan, ...]) -> tuple[NativePlan, ...]:
    topics = tuple(topic for topic in topics if topic.is_native and topic.name != COPIES_TOPIC)
    if not topics or dice.chance(0.6):
        return ()
    return (NativePlan("native", dice.one_of(topics).name, dice.one_of((0, 3)), None),)


def _admins(dice: Dice, topics: tuple[TopicPlan, ...], duration_ms: int) -> tuple[AdminPlan, ...]:
    admins = []
    for _ in range(dice.one_of((0, 0, 1, 3))):
        action: Literal["create_topic", "delete_topic", "delete_records"]
        action = dice.one_of(("create_topic", "delete_topic", "delete_records", "delete_records"))
        topic = dice.one_of(topics).name if action == "delete_records" else "passing"
        admins.append(AdminPlan(dice.between(0, duration_ms), action, topic))
    return tuple(admins)


def _faults(dice: Dice, topology: TopologyName, brokers: int, duration_ms: int) -> tuple[FaultPlan, ...]:
    kinds = [kind for kind in KINDS if topology in kind.topologies]
    faults: list[FaultPlan] = []
    at_ms = FIRST_FAULT_MS + dice.between(0, 1_000)
    while at_ms < duration_ms:
        fault = draw_fault(dice, kinds, brokers, at_ms, LONGEST_FAULT_MS)
        faults.append(fault)
        at_ms = draw_next_ms(dice, fault, PAUSE_MS)
    return tuple(faults)

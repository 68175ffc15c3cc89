"""Plans of robustness runs: the servers, topics, clients and faults that a seed stands for.

A plan is immutable and depends on the seed, the duration and the focus only; the plan of a shorter run has
the first faults of the longer one. All times are milliseconds since the start of the workload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from robustness.dice import Dice
from robustness.history import Outcome, Topic

if TYPE_CHECKING:
    from collections.abc import Sequence

TopologyName = Literal["alone", "pair", "sentinel", "cluster"]
TOPOLOGIES: Final[tuple[TopologyName, ...]] = ("alone", "pair", "sentinel", "cluster")
Loss = Literal["none", "unreplicated"]

# Copies of the data, with the primary's.
COPIES: Final[dict[TopologyName, int]] = {"alone": 1, "pair": 2, "sentinel": 2, "cluster": 2}

# No fault begins before the clients work, nor in the last part of the run, so that clients recover.
FIRST_FAULT_MS: Final = 2_000
LAST_FAULT_BEFORE_END_MS: Final = 3_000
# Pause between two faults, in which clients recover, or not quite.
PAUSE_MS: Final = (500, 5_000)


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault. `loses` says what a server may lose by it that it has acknowledged."""

    name: str
    topologies: tuple[TopologyName, ...]
    targets: tuple[str, ...]
    """`broker` becomes one of the brokers; `link` the connection of a broker to its primary."""
    duration_ms: tuple[int, int] = (0, 0)
    loses: Loss = "none"
    weight: int = 1


REPLICATED: Final[tuple[TopologyName, ...]] = ("pair", "sentinel", "cluster")
FAULT_KINDS: Final = (
    FaultKind("kill", TOPOLOGIES, ("broker",), (300, 3_000), weight=3),
    FaultKind("pause", TOPOLOGIES, ("broker",), (300, 8_000), weight=2),
    FaultKind("join", TOPOLOGIES, ("broker",), (1_000, 6_000)),
    FaultKind("leave", TOPOLOGIES, ("broker",), (1_000, 6_000)),
    FaultKind("clock", TOPOLOGIES, ("broker",), (1_000, 5_000)),
    FaultKind("cut", TOPOLOGIES, ("link", "clients"), (200, 5_000), weight=2),
    FaultKind("cut_requests", TOPOLOGIES, ("link",), (200, 5_000)),
    FaultKind("cut_replies", TOPOLOGIES, ("link",), (200, 5_000)),
    FaultKind("half_open", TOPOLOGIES, ("link",), (500, 8_000)),
    FaultKind("delay", TOPOLOGIES, ("link", "clients"), (500, 5_000)),
    FaultKind("flush_functions", TOPOLOGIES, ("primary",)),
    FaultKind("maxmemory", TOPOLOGIES, ("primary",), (500, 3_000)),
    FaultKind("kill_and_return", ("alone",), ("primary",), (300, 2_000), weight=3),
    FaultKind("pause_server", ("alone",), ("primary",), (300, 5_000), weight=2),
    FaultKind("disk_full", ("alone",), ("primary",), (500, 3_000)),
    FaultKind("failover_clean", REPLICATED, ("primary",), (0, 0), weight=3),
    FaultKind("failover_lossy", REPLICATED, ("primary",), (300, 3_000), "unreplicated", weight=4),
    FaultKind("pause_primary", ("sentinel", "cluster"), ("primary",), (4_000, 12_000), "unreplicated"),
    FaultKind("split_brain", ("pair", "sentinel"), ("primary",), (3_000, 15_000), "unreplicated", weight=2),
    FaultKind("replica_late", REPLICATED, ("replica",), (500, 5_000), weight=2),
    FaultKind("replica_gone", REPLICATED, ("replica",), (500, 5_000)),
)
KINDS: Final = {kind.name: kind for kind in FAULT_KINDS}


@dataclass(frozen=True, slots=True)
class Focus:
    """What the plans of a campaign have in common. The defaults leave everything to the seed.

    Raises ValueError if none of the faults can happen on the topology.
    """

    topology: TopologyName | None = None
    faults: tuple[str, ...] = ()
    """The only kinds of faults; empty for all kinds."""
    replica_lag_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.topologies:
            faults = " or ".join(self.faults)
            raise ValueError(f"there is no {faults} on {self.topology or 'a topology'}")

    @property
    def topologies(self) -> tuple[TopologyName, ...]:
        """The topologies to choose from: those on which a fault can happen."""
        allowed = TOPOLOGIES if self.topology is None else (self.topology,)
        return tuple(one for one in allowed if self.kinds(one))

    def kinds(self, topology: TopologyName) -> list[FaultKind]:
        """Returns the kinds of faults that can happen on a topology."""
        wanted = self.faults or KINDS
        return [kind for kind in FAULT_KINDS if topology in kind.topologies and kind.name in wanted]

    def lag_ms(self, topology: TopologyName, drawn_ms: int) -> int:
        """Returns how late replicas are, if the seed says `drawn_ms`."""
        if COPIES[topology] == 1:
            return 0
        return drawn_ms if self.replica_lag_ms is None else self.replica_lag_ms


EVERYTHING: Final = Focus()


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to create."""

    name: str
    partitions: int
    offsets: Literal["clock", "dense"]
    min_insync_replicas: int
    layout: Literal["record", "batch"] = "record"
    compacted: bool = False

    @property
    def is_native(self) -> bool:
        """Whether Redis clients can read and write its entries."""
        return self.layout == "record" and self.offsets == "clock" and not self.compacted


# Short: what a fault has ended is over soon.
SESSION_TIMEOUT_MS: Final = 6_000
TRANSACTION_TIMEOUT_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """A process that produces."""

    name: str
    client: str
    kind: Literal["plain", "idempotent", "transactional"]
    topics: tuple[str, ...]
    acks: int
    rate_per_s: int
    linger_ms: int
    abort_percent: int = 0
    """Share of transactions that the producer aborts."""
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The members of a group, which read all records of their topics from the beginning."""

    name: str
    client: str
    protocol: Literal["classic", "consumer"]
    members: int
    topics: tuple[str, ...]
    isolation: Literal["read_uncommitted", "read_committed"]
    commit_interval_ms: int
    restart_interval_ms: int
    """A member leaves and another one joins this often; 0 is never."""
    copies_to: str | None = None
    """The topic to which the members write what they read, in transactions with their offsets."""
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS


LOCK_MS: Final = 1_000
"""How long members of share groups have records."""
DELIVERIES: Final = 10
"""How often members of share groups get a record at most: faults cost deliveries."""
OUTCOMES: Final[tuple[Outcome | None, ...]] = ("accept",) * 14 + ("release",) * 3 + ("reject", None, None)
"""What becomes of 20 records of a share group; None: nothing, until the lock ends."""


@dataclass(frozen=True, slots=True)
class SharePlan:
    """The members of a share group, which take all records of their topics from the beginning."""

    name: str
    members: int
    topics: tuple[str, ...]
    restart_interval_ms: int
    """A member leaves and another one joins this often; 0 is never."""
    natives: int = 0
    """Redis clients that take from the same Redis groups."""


@dataclass(frozen=True, slots=True)
class NativePlan:
    """Redis clients of a topic."""

    name: str
    topic: str
    writes_per_s: int
    group: str | None
    """The Redis group with which the reader reads; without one it reads all entries."""


@dataclass(frozen=True, slots=True)
class AdminPlan:
    """A request of an administrator."""

    at_ms: int
    action: Literal["create_topic", "delete_topic", "create_partitions", "delete_records", "describe"]
    topic: str


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """A fault. `strength` is its size in its own unit: a delay in ms, a clock's step in s."""

    at_ms: int
    kind: str
    target: str
    duration_ms: int
    strength: int = 0

    @property
    def end_ms(self) -> int:
        """When the fault ends."""
        return self.at_ms + self.duration_ms


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run does."""

    seed: int
    duration_ms: int
    topology: TopologyName
    brokers: int
    replica_lag_ms: int
    """How late the replicas receive what the primary writes."""
    topics: tuple[TopicPlan, ...]
    producers: tuple[ProducerPlan, ...]
    groups: tuple[GroupPlan, ...]
    natives: tuple[NativePlan, ...]
    admins: tuple[AdminPlan, ...]
    faults: tuple[FaultPlan, ...]
    sharers: tuple[SharePlan, ...] = ()

    @property
    def may_lose(self) -> bool:
        """Whether a fault of the run may lose entries that no replica has."""
        return any(KINDS[fault.kind].loses == "unreplicated" for fault in self.faults)

    def kept_acks(self, topic: TopicPlan) -> tuple[int, ...]:
        """Returns the values of acks whose acknowledged records must survive the run."""
        if not self.may_lose:
            return (1, -1)
        return (-1,) if topic.min_insync_replicas >= COPIES[self.topology] else ()


# Kafka's verifiable clients take seconds to start.
JAVA_SHARE: Final = 0.15
JAVA_TOPIC: Final = "java"
JAVA_PRODUCER: Final = ProducerPlan("java-producer", "java", "idempotent", (JAVA_TOPIC,), -1, 100, 0)
JAVA_GROUP: Final = GroupPlan(
    "java-group", "java", "classic", 1, (JAVA_TOPIC,), "read_uncommitted", 0, restart_interval_ms=0
)


def make(seed: int, duration_ms: int, focus: Focus = EVERYTHING) -> Plan:
    """Returns the plan of a seed."""
    dice = Dice(seed, "setting")
    topology = dice.one_of(focus.topologies)
    brokers = dice.between(1, 3)
    topics = _topics(dice, topology)
    producers, groups = _producers(dice, topics), _groups(dice, topics)
    natives = _natives(dice, topics)
    copies = tuple(
        TopicPlan(name, 1, "clock", COPIES[topology])
        for name in {group.copies_to for group in groups}
        if name
    )
    if Dice(seed, "java").chance(JAVA_SHARE):
        producers, groups = (*producers, JAVA_PRODUCER), (*groups, JAVA_GROUP)
        copies += (TopicPlan(JAVA_TOPIC, 1, "clock", COPIES[topology]),)
    return Plan(
        seed=seed,
        duration_ms=duration_ms,
        topology=topology,
        brokers=brokers,
        replica_lag_ms=focus.lag_ms(topology, dice.one_of((0, 0, 20, 100, 1_500))),
        topics=(*topics, *copies),
        producers=producers,
        groups=groups,
        natives=natives,
        sharers=draw_sharers(Dice(seed, "sharers"), topics, 3_000, natives=(0, 1, 2)),
        admins=_admins(Dice(seed, "admin"), topics, duration_ms),
        faults=_faults(Dice(seed, "faults"), focus.kinds(topology), brokers, duration_ms),
    )


def _topics(dice: Dice, topology: TopologyName) -> tuple[TopicPlan, ...]:
    """The first topic asks for all copies, so that each run has acknowledgements that no fault may break."""
    copies = COPIES[topology]
    topics = [TopicPlan("kept", dice.between(1, 3), dice.one_of(("clock", "dense")), copies)]
    for number in range(dice.between(1, 2)):
        offsets: Literal["clock", "dense"] = dice.one_of(("clock", "dense"))
        layout: Literal["record", "batch"] = "batch" if dice.chance(0.25) else "record"
        level = dice.between(1, copies)
        topics.append(TopicPlan(f"topic-{number}", dice.between(1, 3), offsets, level, layout))
    if dice.chance(0.25):
        topics.append(TopicPlan("compacted", 1, "clock", dice.between(1, copies), compacted=True))
    return tuple(topics)


def _producers(dice: Dice, topics: tuple[TopicPlan, ...]) -> tuple[ProducerPlan, ...]:
    names = tuple(topic.name for topic in topics)
    producers = []
    for number in range(dice.between(2, 4)):
        kind: Literal["plain", "idempotent", "transactional"] = (
            "idempotent" if number == 0 else dice.one_of(("plain", "idempotent", "transactional"))
        )
        producers.append(
            ProducerPlan(
                name=f"producer-{number}",
                client=dice.one_of(("confluent", "aiokafka")),
                kind=kind,
                topics=names if number == 0 or dice.chance(0.5) else (dice.one_of(names),),
                acks=dice.one_of((1, -1)) if kind == "plain" else -1,
                rate_per_s=dice.one_of((20, 100, 400)),
                linger_ms=dice.one_of((0, 5, 50)),
                abort_percent=dice.one_of((0, 10, 50)) if kind == "transactional" else 0,
            )
        )
    return tuple(producers)


def _groups(dice: Dice, topics: tuple[TopicPlan, ...]) -> tuple[GroupPlan, ...]:
    names = tuple(topic.name for topic in topics)
    groups = []
    for number in range(dice.between(1, 2)):
        copies_to = "copies" if dice.chance(0.3) else None
        client = "confluent" if copies_to else dice.one_of(("confluent", "confluent", "aiokafka"))
        protocol: Literal["classic", "consumer"] = dice.one_of(("classic", "consumer"))
        groups.append(
            GroupPlan(
                name=f"group-{number}",
                client=client,
                # aiokafka has no other.
                protocol="classic" if client == "aiokafka" else protocol,
                members=dice.between(1, 3),
                topics=names,
                isolation="read_committed" if copies_to or dice.chance(0.5) else "read_uncommitted",
                commit_interval_ms=dice.one_of((100, 1_000)),
                restart_interval_ms=dice.one_of((0, 0, 3_000)),
                copies_to=copies_to,
            )
        )
    return tuple(groups)


def draw_sharers(
    dice: Dice, topics: tuple[TopicPlan, ...], restart_interval_ms: int, natives: tuple[int, ...] = (0,)
) -> tuple[SharePlan, ...]:
    """Returns the share groups of a plan. natives: how many Redis clients a group may have."""
    names = tuple(topic.name for topic in topics if topic.layout == "record")
    if dice.chance(0.6):
        return ()
    members, interval_ms = dice.between(1, 3), dice.one_of((0, 0, restart_interval_ms))
    return (SharePlan("shared", members, names, interval_ms, dice.one_of(natives)),)


def _natives(dice: Dice, topics: tuple[TopicPlan, ...]) -> tuple[NativePlan, ...]:
    topics = tuple(topic for topic in topics if topic.is_native)
    if not topics or dice.chance(0.4):
        return ()
    topic = dice.one_of(topics)
    return (NativePlan("native", topic.name, dice.one_of((0, 10, 50)), None),)


def _admins(dice: Dice, topics: tuple[TopicPlan, ...], duration_ms: int) -> tuple[AdminPlan, ...]:
    admins = []
    at_ms = dice.between(1_000, 6_000)
    while at_ms < duration_ms - LAST_FAULT_BEFORE_END_MS:
        action: Literal["create_topic", "delete_topic", "create_partitions", "delete_records", "describe"]
        action = dice.one_of(
            ("create_topic", "delete_topic", "create_partitions", "delete_records", "describe")
        )
        mine = action in ("create_topic", "delete_topic")
        admins.append(AdminPlan(at_ms, action, "passing" if mine else dice.one_of(topics).name))
        at_ms += dice.between(1_000, 10_000)
    return tuple(admins)


def _faults(
    dice: Dice, possible: Sequence[FaultKind], brokers: int, duration_ms: int
) -> tuple[FaultPlan, ...]:
    kinds = [kind for kind in possible for _ in range(kind.weight)]
    faults: list[FaultPlan] = []
    at_ms = FIRST_FAULT_MS
    while True:
        fault = draw_fault(dice, kinds, brokers, at_ms)
        if fault.end_ms > duration_ms - LAST_FAULT_BEFORE_END_MS:
            return tuple(faults)
        faults.append(fault)
        at_ms = draw_next_ms(dice, fault, PAUSE_MS)


def draw_fault(
    dice: Dice, kinds: Sequence[FaultKind], brokers: int, at_ms: int, longest_ms: int | None = None
) -> FaultPlan:
    """Returns a fault of one of the kinds, of `longest_ms` at most."""
    kind = dice.one_of(kinds)
    target = dice.one_of(kind.targets)
    number = dice.between(1, brokers)
    drawn_ms = dice.between(*kind.duration_ms)
    return FaultPlan(
        at_ms=at_ms,
        kind=kind.name,
        target=f"{target}-{number}" if target in ("broker", "link") else target,
        duration_ms=drawn_ms if longest_ms is None else min(drawn_ms, longest_ms),
        strength=_strength(dice, kind.name),
    )


def draw_next_ms(dice: Dice, fault: FaultPlan, pause_ms: tuple[int, int]) -> int:
    """Returns when the next fault begins: one in five begins during this one, if this one is of a broker or
    of connections.
    """
    overlaps = dice.chance(0.2) and fault.target.partition("-")[0] in ("broker", "link", "clients")
    lasts_ms = fault.duration_ms // 2 if overlaps else fault.duration_ms
    return fault.at_ms + lasts_ms + dice.between(*pause_ms)


def _strength(dice: Dice, kind: str) -> int:
    match kind:
        case "delay":
            return dice.one_of((5, 50, 400))
        case "clock":
            return dice.one_of((-1_800, -5, 5, 1_800))
        case "replica_late":
            return dice.one_of((100, 1_500))
        case _:
            return 0


def first_event(plan: Plan) -> dict[str, Any]:
    """Returns the fields of a run's first event: what the checkers must know."""
    topics = tuple(
        Topic(
            name=topic.name,
            partitions=topic.partitions,
            offsets=topic.offsets,
            kept_acks=plan.kept_acks(topic),
            compacted=topic.compacted,
        )
        for topic in plan.topics
    )
    return {
        "seed": plan.seed,
        "topology": plan.topology,
        "topics": topics,
        "groups": tuple(group.name for group in plan.groups),
        "kept_locks": not plan.may_lose,
        "lock_ms": LOCK_MS,
        "deliveries": DELIVERIES,
        "share_groups": tuple(group.name for group in plan.sharers),
        "plan": describe(plan),
    }


def describe(plan: Plan) -> str:
    """Returns the plan as text, which a run prints first and a history contains."""
    servers = f"{plan.topology}, {plan.brokers} brokers, replicas {plan.replica_lag_ms} ms late"
    lines = [f"seed {plan.seed}, {plan.duration_ms / 1000:g} s, {servers}"]
    lines += [
        f"  {part}" for part in (*plan.topics, *plan.producers, *plan.groups, *plan.sharers, *plan.natives)
    ]
    timed: list[AdminPlan | FaultPlan] = [*plan.admins, *plan.faults]
    lines += [f"  {part.at_ms / 1000:7.2f} s  {_happening(part)}" for part in sorted(timed, key=_at_ms)]
    return "\n".join(lines)


def _at_ms(part: AdminPlan | FaultPlan) -> int:
    return part.at_ms


def _happening(part: AdminPlan | FaultPlan) -> str:
    if isinstance(part, AdminPlan):
        return f"admin: {part.action} {part.topic}"
    strength = f", strength {part.strength}" if part.strength else ""
    return f"fault: {part.kind} of {part.target} for {part.duration_ms / 1000:g} s{strength}"

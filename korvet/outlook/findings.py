"""What checks of Redis have found, in words for operators. No I/O: `korvet doctor` and brokers ask Redis."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from korvet.outlook import durability
from korvet.outlook.durability import outlooks
from korvet.redis.errors import StorageError
from korvet.redis.fields import shown
from korvet.redis.refusals import EFFECTS, Cause
from korvet.redis.server_module import Use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from korvet.outlook.durability import Setup
    from korvet.redis.refusals import Refusal
    from korvet.redis.server_facts import ServerFacts
    from korvet.redis.server_module import Verdict

OK: Final = durability.OK
WARNING: Final = durability.WARNING
FAULT: Final = durability.FAULT
# Idle time of a hanging transaction: the default of transaction.max.timeout.ms. Coordinators end theirs by
# then.
_HANGING_MS: Final = 900_000


class Finding(NamedTuple):
    """The result of one check. `state` is ok, warning or fault."""

    subject: str
    state: str
    text: str


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition."""

    stream: str
    """The partition's stream."""
    producer_id: int
    first_offset: int
    seen_ms: int
    """When its producer wrote last, in ms since the epoch."""


class UnreadableTransactions(NamedTuple):
    """A partition whose notes of open transactions are damaged."""

    stream: str
    reason: str


TransactionNote: TypeAlias = OpenTransaction | UnreadableTransactions
"""What Redis notes of an open transaction."""


def durability_findings(found: Mapping[str, ServerFacts | StorageError], setup: Setup) -> Iterator[Finding]:
    """What each kind of failure can lose, and whether topics have the replicas that they ask for. `found`: by
    server its facts, or why it does not report them.
    """
    known = {}
    for place, reported in found.items():
        if isinstance(reported, StorageError):
            yield Finding(f"durability, {place}", WARNING, str(reported))
        else:
            known[place] = reported
    yield from (Finding(*each) for each in outlooks(known, setup, len(found)))


def module_findings(verdicts: Mapping[str, Verdict]) -> Iterator[Finding]:
    """Which servers append by the server module. The module is faster, but nobody needs it."""
    many = len(verdicts) > 1
    by_use = {use: [place for place, verdict in verdicts.items() if verdict.use is use] for use in Use}
    if by_use[Use.USED]:
        text = f"used on {len(by_use[Use.USED])} of {len(verdicts)} servers" if many else "used"
        yield Finding("server module", OK, text)
    if missing := len(by_use[Use.NOT_LOADED]):
        where = f" on {missing} of {len(verdicts)} servers" if many else ""
        yield Finding("server module", OK, f"not loaded{where}: appends take more time (`korvet module`)")
    for place, verdict in verdicts.items():
        if verdict.use not in {Use.USED, Use.NOT_LOADED}:
            subject = f"server module, {place}" if many else "server module"
            yield Finding(subject, WARNING, f"not used: {verdict.reason}")


def transaction_findings(opened: Iterable[TransactionNote], now_ms: int) -> Iterator[Finding]:
    """The transactions that have been idle for longer than a transaction may take. Consumers with
    `read_committed` wait for them.
    """
    count = hanging = 0
    for each in opened:
        if isinstance(each, UnreadableTransactions):
            yield Finding(each.stream, FAULT, f"its transactions cannot be read: {each.reason}")
            continue
        count += 1
        if now_ms - each.seen_ms > _HANGING_MS:
            hanging += 1
            seen = datetime.fromtimestamp(each.seen_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
            text = (
                f"readers of committed records wait at offset {each.first_offset}: producer "
                f"{each.producer_id} has a transaction open, in which it wrote last at {seen} UTC"
            )
            yield Finding(each.stream, WARNING, text)
    if not hanging:
        yield Finding("transactions", OK, f"{count} open, none idle for {_HANGING_MS // 60_000} min")


def refusal_findings(refusals: Iterable[Refusal]) -> Iterator[Finding]:
    """What a broker refuses now."""
    for row in refusals:
        where = f", {row.place}" if row.place else ""
        state = WARNING if row.cause is Cause.NEARLY_FULL else FAULT
        yield Finding(f"refused: {row.cause.value}{where}", state, f"{EFFECTS[row.cause]}: {row.reason}")


def damage_findings(key: bytes, damaged: Mapping[bytes, str]) -> Iterator[Finding]:
    """The fields of a shared hash that brokers cannot read, each with the reason."""
    for field, reason in sorted(damaged.items()):
        yield Finding(f"{key.decode()} {shown(field)}", FAULT, f"brokers skip it: {reason}")

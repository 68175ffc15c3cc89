"""Reports of a checked history: a summary, and for each violation the events of its partition around it."""

from __future__ import annotations

import html
from collections import Counter
from typing import TYPE_CHECKING, Final

from robustness.checkers import check
from robustness.checkers.facts import Facts, short
from robustness.history import (
    UNKNOWN,
    Admin,
    Assign,
    CatchUp,
    Commit,
    Fault,
    NativeRead,
    NativeSend,
    OffsetForEpoch,
    Poll,
    ReadAll,
    ReadCommit,
    ReadNativeGroup,
    Send,
    Settle,
    Take,
    Truncated,
    Txn,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from robustness.checkers import Violation
    from robustness.history import Event, Place

# Violations of one kind that a report shows in full; the summary counts all.
SHOWN_OF_A_KIND: Final = 10
# Events of the same partition that are shown before, between and after the events that prove a violation.
CONTEXT: Final = 12
# Records of a poll that are shown around the offset of a violation.
RECORDS: Final = 6
NS_PER_S: Final = 1e9


def describe(event: Event, violation: Violation) -> str | None:
    """Returns what an event did to a violation's partition, or None if nothing."""
    match event:
        case Send() | NativeSend() if (event.topic, event.partition) == _partition(violation):
            return _sent(event)
        case Poll(records=records):
            mine = [(r.offset, r.value) for r in records if (r.topic, r.partition) == _partition(violation)]
            return f"polled {_records(mine, violation.offset)}" if mine else None
        case NativeRead() if (event.topic, event.partition) == _partition(violation):
            return (
                f"read {', '.join(f'{entry_id}={short(value, 30)}' for entry_id, value in event.entries[:9])}"
            )
        case ReadAll() if (event.topic, event.partition) == _partition(violation):
            return (
                f"final read, {event.reader}, {event.isolation}: {_records(event.records, violation.offset)}"
            )
        case Truncated() if (event.topic, event.partition) == _partition(violation):
            return f"told: truncated to {event.offset}"
        case OffsetForEpoch() if (event.topic, event.partition) == _partition(violation):
            answer = f" -> epoch {event.answered} ends at {event.end}" if event.type == "ok" else ""
            return f"{event.type} end of epoch {event.epoch}{answer}"
        case ReadNativeGroup() if (event.topic, event.partition) == _partition(violation):
            return f"Redis group {event.group} at {event.offset}, pending {list(event.pending[:9])}"
        case Assign(places=places):
            mine_ = _places(places, violation)
            return f"{event.why}: {mine_ or 'without this partition'}"
        case Commit() | ReadCommit():
            mine_ = _places(event.offsets, violation)
            verb = "commit" if isinstance(event, Commit) else "committed offset"
            return f"{event.type} {verb} of {event.group}: {mine_}" if mine_ else None
        case Txn():
            return f"{event.type} {event.action} of {event.txn}{_error(event)}"
        case Take() if event.records:
            mine_ = [record for record in event.records if record[:2] == _partition(violation)]
            taken = [(record.offset, record.value) for record in mine_]
            return f"{event.group} gives {_records(taken, violation.offset)}" if mine_ else None
        case Settle(record=record) if (*record[:3],) == (*_partition(violation), violation.offset):
            return f"{event.type} {event.outcome} of {event.group}{_error(event)}"
        case CatchUp():
            return f"{event.type} catch up of {event.group}{_error(event)}"
        case Admin():
            where = "" if event.topic is None else f" {event.topic}-{event.partition} {event.offset}"
            return f"{event.type} {event.action}{where} {event.detail}{_error(event)}"
        case Fault():
            return f"{event.phase} of {event.kind} of {event.target} {event.detail}"
        case _:
            return None


def _partition(violation: Violation) -> tuple[str, int]:
    return violation.topic, violation.partition


def _error(event: Event) -> str:
    return "" if event.error is None else f": {event.error}"


def _sent(event: Send | NativeSend) -> str:
    where = event.entry_id if isinstance(event, NativeSend) else event.offset
    placed = f" at {where}" if where not in (None, UNKNOWN) else ""
    epoch = f" in epoch {event.epoch}" if isinstance(event, Send) and event.epoch != UNKNOWN else ""
    within = f" in {event.txn}" if isinstance(event, Send) and event.txn else ""
    acks = f" acks={event.acks}" if isinstance(event, Send) else ""
    return f"{event.type} send {short(event.value)}{placed}{epoch}{within}{acks}{_error(event)}"


def _records(records: Sequence[tuple[int, str]], offset: int) -> str:
    """Returns the records nearest to an offset."""
    nearest = sorted(records, key=lambda record: abs(record[0] - offset))[:RECORDS]
    shown = ", ".join(f"{at}={short(value, 30)}" for at, value in sorted(nearest))
    return shown if len(records) <= RECORDS else f"{len(records)} records, of these {shown}"


def _places(places: Sequence[Place], violation: Violation) -> str:
    mine = [place for place in places if (place.topic, place.partition) == _partition(violation)]
    return ", ".join(str(p.offset) if p.offset != UNKNOWN else "no offset" for p in mine)


def timeline(facts: Facts, violation: Violation) -> list[tuple[int, str]]:
    """Returns (index, description) of the events that prove a violation and of those around them.

    Around them are events of the same partition, events of the same processes, and all faults.
    """
    proof = set(violation.events)
    first, last = (min(proof), max(proof)) if proof else (len(facts.history),) * 2
    processes = {facts.history[index].process for index in proof}
    before: list[tuple[int, str]] = []
    within: list[tuple[int, str]] = []
    after: list[tuple[int, str]] = []
    for index, event in enumerate(facts.history):
        text = describe(event, violation)
        is_of_others = text is None or (isinstance(event, Txn | Assign) and event.process not in processes)
        if is_of_others and index not in proof:
            continue
        part = before if index < first else after if index > last else within
        part.append((index, text or _elsewhere(event)))
    near = [entry for entry in within if entry[0] in proof or _is_near(entry[0], proof)]
    return [*before[-CONTEXT:], *near, *after[:CONTEXT]]


def _elsewhere(event: Event) -> str:
    """Returns what an event of another partition did."""
    if isinstance(event, Send | NativeSend):
        return f"{event.topic}-{event.partition}: {_sent(event)}"
    if isinstance(event, Poll):
        return (
            f"polled {', '.join(f'{r.topic}-{r.partition}: {short(r.value, 30)}' for r in event.records[:9])}"
        )
    return f"{event.type} {type(event).__name__}"


def _is_near(index: int, proof: Iterable[int]) -> bool:
    return any(abs(index - one) <= CONTEXT for one in proof)


def shown(violations: Sequence[Violation]) -> Iterator[Violation]:
    """Yields the violations to show in full: the first ones of each kind, notes last."""
    count: Counter[tuple[str, bool]] = Counter()
    for violation in violations:
        count[violation.kind, violation.is_note] += 1
        if count[violation.kind, violation.is_note] <= (1 if violation.is_note else SHOWN_OF_A_KIND):
            yield violation


def counts(facts: Facts) -> dict[str, int]:
    """Returns what happened in a run; the faults of each kind are counted as `fault: KIND`."""
    sends = list(facts.sends.values())
    faults = Counter(e.kind for e in facts.history if isinstance(e, Fault) and e.phase == "begin")
    return {
        "events": len(facts.history),
        "records sent": len(sends),
        "records acknowledged": sum(sent.outcome == "ok" for sent in sends),
        "records read": sum(1 for _ in facts.reads),
        "transactions": len(facts.txns),
        "commits": sum(isinstance(e, Commit) and e.type == "ok" for e in facts.history),
        "records of share groups taken": sum(len(e.records) for e in facts.history if isinstance(e, Take)),
        "records of share groups accepted": sum(
            isinstance(e, Settle) and (e.outcome, e.type) == ("accept", "ok") for e in facts.history
        ),
        **{f"fault: {kind}": count for kind, count in sorted(faults.items())},
    }


def _summary(facts: Facts, violations: Sequence[Violation]) -> list[tuple[str, int, str]]:
    """Returns (subject, count, remark) lines."""
    found = Counter((violation.kind, violation.is_note) for violation in violations)
    return [(subject, count, "") for subject, count in counts(facts).items()] + [
        (kind, count, "allowed here" if is_note else "violation")
        for (kind, is_note), count in sorted(found.items(), key=lambda item: item[0][1])
    ]


def table(lines: Iterable[tuple[str, int, str]]) -> list[str]:
    """Returns (subject, count, remark) lines as text."""
    return [f"  {count:9,d}  {subject}  {remark}".rstrip() for subject, count, remark in lines]


def _title(violation: Violation) -> str:
    where = f" in {violation.topic}-{violation.partition}" if violation.topic else ""
    at = f" at {violation.offset}" if violation.offset != UNKNOWN else ""
    return f"{violation.kind}{where}{at}"


def as_text(facts: Facts, violations: Sequence[Violation]) -> str:
    """Returns the report as text."""
    verdict = "violations found" if any(not one.is_note for one in violations) else "no violation"
    lines = [f"seed {facts.run.seed}, {facts.run.topology}: {verdict}"]
    lines += table(_summary(facts, violations))
    for violation in shown(violations):
        lines += ["", f"{'allowed: ' * violation.is_note}{_title(violation)}", f"  {violation.message}"]
        for index, text in timeline(facts, violation):
            event = facts.history[index]
            mark = ">" if index in violation.events else " "
            lines.append(f" {mark} {event.at / NS_PER_S:10.4f} s  {event.process:14s}  {text}")
    return "\n".join(lines) + "\n"


STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 100em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
td, th { padding: .2em .7em; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #999 } td { border-bottom: 1px solid #eee }
.number { text-align: right; white-space: nowrap }
.proof { background: #fde9d9 } .fault { background: #e4ecf7 } .violation { color: #b00020 }
pre { overflow-x: auto }
"""


def as_html(facts: Facts, violations: Sequence[Violation]) -> str:
    """Returns the report as one page without references to other files."""
    name = html.escape(f"Seed {facts.run.seed}, {facts.run.topology}")
    rows = "".join(
        f"<tr><td>{html.escape(subject)}</td><td class=number>{count:,}</td>"
        f"<td class={'violation' if remark == 'violation' else 'remark'}>{remark}</td></tr>"
        for subject, count, remark in _summary(facts, violations)
    )
    parts = "".join(_section(facts, violation) for violation in shown(violations))
    plan = f"<details><summary>Plan</summary><pre>{html.escape(facts.run.plan)}</pre></details>"
    return (
        f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{name}</title><style>{STYLE}</style>"
        f"<h1>{name}</h1>{plan}<table>{rows}</table>{parts}</html>\n"
    )


def _section(facts: Facts, violation: Violation) -> str:
    """Returns the timeline of a violation, with a column for each process."""
    events = timeline(facts, violation)
    processes = list(dict.fromkeys(facts.history[index].process for index, _ in events))
    head = "".join(f"<th>{html.escape(process)}" for process in processes)
    rows = []
    for index, text in events:
        event = facts.history[index]
        kind = "proof" if index in violation.events else "fault" if isinstance(event, Fault) else "context"
        cells = "".join(f"<td>{html.escape(text) if event.process == p else ''}" for p in processes)
        rows.append(f"<tr class={kind}><td class=number>{event.at / NS_PER_S:.4f} s{cells}")
    title = f"{'Allowed: ' * violation.is_note}{_title(violation)}"
    return (
        f"<h2>{html.escape(title)}</h2><p>{html.escape(violation.message)}</p>"
        f"<table><tr><th>time{head}{''.join(rows)}</table>"
    )


def checked(history: Iterable[Event]) -> tuple[Facts, list[Violation]]:
    """Returns a history's index and all that the checkers find."""
    facts = Facts(history)
    return facts, check(facts)

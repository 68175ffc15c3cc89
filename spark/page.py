"""The report as one HTML page that opens offline: no script, no outside reference, light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from korvet.spark.charts import Step, clock, duration, rate_chart, step_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

# What is said of each status, worst first; the wording matches views.group_summary.
STATUSES = {
    "abandoned": "Unread records, no members, and no commit for long.",
    "stuck": "Has members, but neither reads nor commits.",
    "stopped": "Unread records and no members.",
    "behind": "Reads, but the first unread record is old.",
    "stale": "Everything read, no members, and no commit for long.",
    "ok": "Nothing to do.",
}
MAX_DETAILED_GROUPS = 100
MAX_TIMELINE_ROWS = 12


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One committed offset of a group."""

    topic: str
    partition: int
    committed_offset: int
    record_lag: int | None
    lag_ms: int | None
    commit_ms: int | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One present member of a group."""

    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None
    assigned: str


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """One recorded state of a group."""

    at_ms: int
    generation: int | None
    member_count: int
    joined: int
    left: int
    protocol: str | None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """All that the page says of one group."""

    name: str
    status: str
    record_lag: int | None
    lag_ms: int | None
    commit_age_ms: int | None
    member_count: int
    partitions: Sequence[PartitionRow]
    members: Sequence[MemberRow]
    generations: Sequence[GenerationRow]
    commits_per_minute: dict[int, int]


@dataclass(frozen=True, slots=True)
class ReportPage:
    """All that the page says. Times in ms since 1970; `groups` worst first."""

    source: str
    as_of_ms: int
    commits: int
    quarantined: int
    groups: Sequence[GroupPage]


def render(report: ReportPage) -> str:
    """The page as HTML text."""
    body = _empty() if not report.groups else _summary(report) + _details(report)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Consumer groups, {clock(report.as_of_ms)} UTC</title><style>{STYLE}</style></head><body>"
        f"<header><h1>Consumer groups</h1><p>{escape(report.source)} \u00b7 as of "
        f"{clock(report.as_of_ms)} UTC</p></header><main>{body}</main>"
        "<footer>Lag is counted in records and in time; offsets are sparse, so their differences say nothing."
        " Time lag is how long the first unread record has been waiting.</footer></body></html>"
    )


def _empty() -> str:
    return (
        '<section class="card empty"><h2>No consumer group has committed anything yet</h2>'
        "<p>There is no offset and no group in <code>__consumer_offsets</code>. Let a Kafka consumer with a "
        "<code>group.id</code> read a topic and commit, then run the report again.</p></section>"
    )


def _summary(report: ReportPage) -> str:
    unread = sum(group.record_lag or 0 for group in report.groups)
    worst = max((group.lag_ms or 0 for group in report.groups), default=0)
    troubled = [group for group in report.groups if group.status != "ok"]
    tiles = [
        (f"{len(report.groups):,}", "groups"),
        (f"{len(troubled):,}", "need attention"),
        (f"{unread:,}", "unread records"),
        (duration(worst), "longest wait"),
        (f"{report.commits:,}", "commits in the log"),
    ]
    if report.quarantined:
        tiles.append((f"{report.quarantined:,}", "unreadable records"))
    shown = "".join(f"<div><b>{value}</b><span>{label}</span></div>" for value, label in tiles)
    return (
        f'<section class="tiles">{shown}</section>{_attention(troubled)}<section class="card"><h2>All groups'
        f"</h2>{_group_table(report)}</section>"
    )


def _attention(troubled: Sequence[GroupPage]) -> str:
    if not troubled:
        return '<section class="card calm"><h2>Nothing needs attention</h2></section>'
    items = "".join(
        f"<li>{_badge(group.status)} {_link(group)} <span>{STATUSES[group.status]} "
        f"{group.record_lag or 0:,} unread, waiting {duration(group.lag_ms)}; "
        f"last commit {duration(group.commit_age_ms)} ago.</span></li>"
        for group in troubled[:MAX_DETAILED_GROUPS]
    )
    return f'<section class="card"><h2>Needs attention</h2><ul class="attention">{items}</ul></section>'


def _group_table(report: ReportPage) -> str:
    rows = [
        (
            _link(group),
            _badge(group.status),
            f"{group.member_count:,}",
            f"{len({row.topic for row in group.partitions}):,}",
            f"{len(group.partitions):,}",
            "\u2013" if group.record_lag is None else f"{group.record_lag:,}",
            duration(group.lag_ms),
            _ago(group.commit_age_ms),
        )
        for group in report.groups
    ]
    heads = ("Group", "Status", "Members", "Topics", "Partitions", "Unread", "Waiting", "Last commit")
    return _table(heads, rows, text_columns=2)


def _details(report: ReportPage) -> str:
    chosen = report.groups[:MAX_DETAILED_GROUPS]
    sections = "".join(_group(group, report.as_of_ms) for group in chosen)
    if len(report.groups) > len(chosen):
        rest = len(report.groups) - len(chosen)
        sections += f'<p class="note">{rest:,} more groups are in the Parquet tables.</p>'
    return sections


def _group(group: GroupPage, as_of_ms: int) -> str:
    first_ms, last_ms = _time_span(group, as_of_ms)
    rate = rate_chart(group.commits_per_minute, first_ms, last_ms) if group.commits_per_minute else ""
    parts = [f'<h2 id="{_anchor(group.name)}">{_name(group.name)} {_badge(group.status)}</h2>']
    figures = []
    if rate:
        figures.append(f"<figure><figcaption>Commits per minute</figcaption>{rate}</figure>")
    if group.generations:
        steps = [Step(row.at_ms, row.member_count, _generation_label(row)) for row in group.generations]
        chart = step_chart(steps, first_ms, last_ms)
        figures.append(f"<figure><figcaption>Members and generations</figcaption>{chart}</figure>")
    if figures:
        parts.append(f'<div class="figures">{"".join(figures)}</div>')
    if group.partitions:
        parts.append("<h3>Offsets</h3>" + _partition_table(group, as_of_ms))
    parts.append("<h3>Members</h3>" + (_member_table(group) if group.members else "<p>None now.</p>"))
    if group.generations:
        parts.append("<h3>Generations</h3>" + _generation_table(group))
    return f'<section class="card">{"".join(parts)}</section>'


def _time_span(group: GroupPage, as_of_ms: int) -> tuple[int, int]:
    times = [*group.commits_per_minute, *(row.at_ms for row in group.generations)]
    return (min(times), max(as_of_ms, *times)) if times else (as_of_ms, as_of_ms)


def _generation_label(row: GenerationRow) -> str:
    generation = "forgotten" if row.generation is None else f"generation {row.generation}"
    return f"{generation}, {row.member_count} members (+{row.joined} \u2212{row.left})"


def _partition_table(group: GroupPage, as_of_ms: int) -> str:
    rows = [
        (
            escape(row.topic),
            str(row.partition),
            str(row.committed_offset),
            "\u2013" if row.record_lag is None else f"{row.record_lag:,}",
            duration(row.lag_ms),
            _ago(None if row.commit_ms is None else max(0, as_of_ms - row.commit_ms)),
        )
        for row in group.partitions
    ]
    heads = ("Topic", "Partition", "Committed offset", "Unread", "Waiting", "Last commit")
    return _table(heads, rows, text_columns=1)


def _member_table(group: GroupPage) -> str:
    rows = [
        (
            escape(row.member_id),
            escape(row.instance_id or "\u2013"),
            escape(row.client_id),
            escape(row.client_host.lstrip("/")),
            escape(row.assigned),
        )
        for row in group.members
    ]
    return _table(("Member", "Instance", "Client", "Host", "Assigned"), rows, text_columns=5)


def _generation_table(group: GroupPage) -> str:
    newest = list(reversed(group.generations))[:MAX_TIMELINE_ROWS]
    rows = [
        (
            clock(row.at_ms),
            escape(row.protocol or "\u2013"),
            "\u2013" if row.generation is None else str(row.generation),
            str(row.member_count),
            f"+{row.joined}" if row.joined else "",
            f"\u2212{row.left}" if row.left else "",
        )
        for row in newest
    ]
    note = ""
    if len(group.generations) > len(newest):
        note = f'<p class="note">The newest {len(newest)} of {len(group.generations):,}.</p>'
    heads = ("Time (UTC)", "Assignor", "Generation", "Members", "Joined", "Left")
    return _table(heads, rows, text_columns=2) + note


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> str:
    """A table of ready HTML cells; the first columns are text, the others numbers."""

    def cell(tag: str, index: int, content: str) -> str:
        return f"<{tag}>{content}</{tag}>" if index < text_columns else f'<{tag} class="n">{content}</{tag}>'

    head = "".join(cell("th", index, escape(name)) for index, name in enumerate(heads))
    body = "".join(
        f"<tr>{''.join(cell('td', index, content) for index, content in enumerate(row))}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ago(ms: int | None) -> str:
    return "\u2013" if ms is None else f"{duration(ms)} ago"


def _badge(status: str) -> str:
    return f'<span class="badge {status}" title="{escape(STATUSES[status])}">{status}</span>'


def _name(group: str) -> str:
    return escape(group) or "<i>(empty name)</i>"


def _link(group: GroupPage) -> str:
    return f'<a href="#{_anchor(group.name)}">{_name(group.name)}</a>'


def _anchor(name: str) -> str:
    return "g-" + name.encode().hex()


STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--text:#1b2330;--dim:#667085;--line:#e3e6ec;
--accent:#3b6fd9;--ok:#1a7f4b;--warn:#b25e00;--bad:#c0312b}
@media(prefers-color-scheme:dark){:root{--bg:#10141b;--card:#191f29;--text:#e4e8ef;--dim:#97a1b3;
--line:#2b3342;--accent:#7aa5ff;--ok:#58c98f;--warn:#f0a94e;--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
header,main,footer{max-width:1120px;margin:0 auto;padding:0 24px}
header{padding-top:28px}h1{margin:0;font-size:26px}header p,footer,.note{color:var(--dim);margin:2px 0 18px}
footer{padding-bottom:40px;font-size:13px}
.card,.tiles>div{background:var(--card);border:1px solid var(--line);border-radius:10px}
.card{padding:18px 22px;margin:0 0 18px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:18px}
.tiles>div{padding:12px 16px}.tiles b{display:block;font-size:24px;line-height:1.25;
font-variant-numeric:tabular-nums}
.tiles span{color:var(--dim);font-size:13px}
h2{font-size:18px;margin:0 0 10px}h3{font-size:14px;margin:18px 0 6px;color:var(--dim)}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
.attention{list-style:none;margin:0;padding:0}.attention li{padding:5px 0}
.attention span:last-child{color:var(--dim)}
.badge{display:inline-block;padding:0 9px;border-radius:9px;font-size:12px;font-weight:600;line-height:20px;
vertical-align:2px;color:var(--warn);background:color-mix(in srgb,currentColor 14%,transparent)}
.badge.ok{color:var(--ok)}.badge.abandoned,.badge.stuck,.badge.stopped{color:var(--bad)}
.badge.stale{color:var(--dim)}
.calm h2{margin:0;color:var(--ok)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--dim);font-weight:500;font-size:13px}tr:last-child td{border-bottom:0}
.n{text-align:right;font-variant-numeric:tabular-nums}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(380px,1fr));gap:18px}
figure{margin:0}figcaption{color:var(--dim);font-size:13px}svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font-size:11px}.grid{stroke:var(--line)}.bar{fill:var(--accent)}
.line{fill:none;stroke:var(--accent);stroke-width:2;stroke-linejoin:round}
.dot{fill:var(--card);stroke:var(--accent);stroke-width:2}
""".strip()

"""Writes the generated parts of docs/: settings, APIs, commands, tables, keys, errors and more.

Run it with `./dev run python -m tools.reference`; `--check` only compares. The function NAME below writes the
part of a page between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections import defaultdict
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

import korvet.admin.merged
import korvet.broker
from korvet import api
from korvet.api.common import errors as api_errors
from korvet.cli.app import korvet
from korvet.config.dynamic import scope_of
from korvet.config.keys import settings
from korvet.metrics.declared import declared
from korvet.outlook import durability
from korvet.protocol import registry
from korvet.redis.keys import Keyspace
from korvet.spark.source import options
from korvet.spark.tables.catalog import ANSWERS, TABLES
from korvet.topics import configs
from tools import compatibility, spark_support

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ALERT_RULES = ROOT / "deploy" / "prometheus" / "rules" / "alerts.yml"
# The configs that `configs.TopicPolicy` uses: they have an effect.
HONOURED = {
    configs.ACKS_ALL_FSYNC,
    configs.CLEANUP_POLICY,
    configs.DEAD_LETTER_ENABLE,
    configs.DELETE_ACCEPTED,
    configs.DELETE_RETENTION_MS,
    configs.MAX_COMPACTION_LAG_MS,
    configs.MAX_DECOMPRESSED_BYTES,
    configs.MAX_MESSAGE_BYTES,
    configs.MIN_CLEANABLE_DIRTY_RATIO,
    configs.MIN_COMPACTION_LAG_MS,
    configs.MIN_INSYNC_REPLICAS,
    configs.NATIVE_FORMAT,
    configs.OFFSET_ASSIGNMENT,
    configs.RETENTION_BYTES,
    configs.RETENTION_MS,
    configs.STORAGE_LAYOUT,
    configs.TIMESTAMP_AFTER_MAX_MS,
    configs.TIMESTAMP_BEFORE_MAX_MS,
    configs.TIMESTAMP_TYPE,
}
# The subjects of the metrics, each with the modules that declare them.
SUBJECTS = {
    "The broker: traffic of topics, led partitions, connections, lease, appends, caches, share groups and "
    "compaction.": (
        "log.counts",
        "observe.led_partitions",
        "observe.brokers",
        "api.common.listener_counts",
        "api.fetching.sessions",
        "api.fetching.memory",
        "api.sharing.counts",
        "api.sharing.sharing",
        "server.backpressure",
        "cluster.lease",
        "log.broker_logs",
        "log.tail_cache",
        "log.readahead",
        "topics.compaction",
    ),
    "Consumer groups, under the names of kafka_exporter and kafka-lag-exporter, and what coordinators "
    "count.": (
        "observe.groups",
        "observe.queues",
        "groups.context",
        "coordinator.partitions",
    ),
    "The forecast of memory: how fast topics grow, and what retention needs.": ("observe.memory",),
    "Topics and partitions, under the names of kafka_exporter and kafka-lag-exporter.": (
        "observe.partitions",
        "observe.counting",
    ),
    "The process: build, memory, processor time, event loop, background work, and the scrape itself.": (
        "observe.process",
        "observe.event_loop",
        "server.dispatch",
        "observe.registry",
        "admin.readiness",
        "admin.metrics_page",
        "admin.endpoint",
        "admin.merged",
    ),
    "The connections to Redis, and what the servers report about themselves.": (
        "redis.link",
        "redis.barrier",
        "observe.redis",
    ),
    "Requests of clients: numbers, errors, bytes, and where their time goes.": (
        "observe.requests",
        "api.common.request_counts",
    ),
    "Transactions that the broker coordinates, and idempotent producers.": (
        "observe.transactions",
        "transactions.shard",
    ),
}
# Methods of Keyspace that return keys, with arguments for an example.
EXAMPLES = {
    "stream": ("orders", 0),
    "index": ("orders", 0),
    "meta": ("orders", 0),
    "aborted": ("orders", 0),
    "barrier": ("orders", 0),
    "shadow_keys": ("orders", 0),
    "latest": ("__consumer_offsets", 0),
    "pending": ("__consumer_offsets", 0, 7),
    "mail": (1, 4),
}
# A registered function of the Lua library and its callback, in both forms of the call.
_REGISTERED = re.compile(
    r"redis\.register_function\((?:'(\w+)'(?: \.\. RELEASE)?, (\w+)\)"
    r"|\{\s*function_name = '(\w+)'(?: \.\. RELEASE)?,\s*callback = (\w+))"
)
_NAMED = re.compile(r"^\w+ \(key \d+\), versions? \d+(?:-\d+)?(?: \((KIP[^)]*)\))?\. *")
_FACT = re.compile(r"\{f\.(?:server\.)?(\w+?)(?:_s)?(?::[^}]*)?\}")
# A page that an alert names, from the root.
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)(#[\w-]+)?")
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check print the names of outdated ones. Returns the exit status."""
    stale = [path for path, text in pages() if path.read_text() != text]
    if "--check" not in arguments:
        for path, text in pages():
            path.write_text(text)
        return 0
    for path in stale:
        sys.stderr.write(f"{path.name} is out of date: run python -m tools.reference\n")
    return int(bool(stale))


def pages() -> Iterator[tuple[Path, str]]:
    """Returns every page with generated parts, and its up-to-date text."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        if _PART.search(text):
            yield path, _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}", text)


def broker_settings() -> str:
    """Returns a table of all broker settings."""
    rows = (
        (f"`{s.key}`", f"`{s.variable}`", _value(s.default), scope_of(s.key).value, s.description)
        for s in settings()
    )
    return _table(("key", "variable", "default", "dynamic", "meaning"), rows)


def topic_configs() -> str:
    """Returns a table of the topic configs with an effect, then the names of the others."""
    known = configs.TOPIC_CONFIGS.values()
    honoured = [config for config in known if config.name in HONOURED]
    rows = (
        (
            f"`{config.name}`",
            _value(config.default),
            f"`{config.synonym}`" if config.synonym else "",
            config.documentation,
        )
        for config in honoured
    )
    kept = ", ".join(f"`{config.name}`" for config in known if config.name not in HONOURED)
    table = _table(("config", "default", "broker setting", "meaning"), rows)
    return f"{table}\n\nThese configs are stored and shown, but have no effect: {kept}."


def apis() -> str:
    """Returns a table of all APIs with their versions and the text of their module's docstring."""
    api.load_all()
    rows = ((str(one.key), one.name, _versions(one), _notes(one)) for one in registry.registered())
    return _table(("key", "API", "versions", "notes"), rows)


def clients() -> str:
    """Returns a table of the clients that the tests run."""
    rows = (
        (
            client.name,
            client.version,
            client.what,
            ", ".join(f"`{name}`" for name in client.files),
            "yes" if client.every_run else "with `--all`",
        )
        for client in compatibility.clients()
    )
    return _table(("client", "version", "tested", "tests/clients", "in every run"), rows)


def missing() -> str:
    """Returns a table of Kafka's APIs that korvet doesn't advertise, with the reason."""
    api.load_all()
    there = {one.name for one in registry.registered()}
    rows = (
        (one.what, ", ".join(names), one.why)
        for one in compatibility.MISSING
        if (names := [name for name in one.apis if name not in there])
    )
    return _table(("feature", "APIs", "reason"), rows)


def metrics() -> str:
    """Returns a table of metric families for each subject, in the order of their declarations. Raises
    KeyError for a module without a subject.
    """
    by_module: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for family in declared().values():
        labels = ", ".join(f"`{label}`" for label in family.labels)
        by_module[family.declared_in].append((f"`{family.name}`", family.kind.value, labels, family.help))
    parts = []
    for subject, modules in SUBJECTS.items():
        rows = [row for module in modules for row in by_module.pop(f"korvet.{module}")]
        parts.append(f"{subject}\n\n" + _table(("name", "type", "labels", "meaning"), rows))
    if by_module:
        raise KeyError(f"modules whose metrics have no subject: {', '.join(by_module)}")
    return "\n\n".join(parts)


def losses() -> str:
    """Returns a table of what failures can lose; facts are in italics."""
    rows = (
        (
            failure.value,
            _FACT.sub(lambda found: f"*{found[1].replace('_', ' ')}*", row.text),
            row.state.value if isinstance(row.state, durability.Keeps) else "",
        )
        for failure, of_failure in durability.TABLE.items()
        for row in of_failure
    )
    return _table(("if", "what can be lost", "nothing with acks=all, if the topic has"), rows)


def _versions(one: registry.Api) -> str:
    if one.min_version == one.max_version:
        return str(one.min_version)
    return f"{one.min_version}–{one.max_version}"  # noqa: RUF001 - a range


def _notes(one: registry.Api) -> str:
    """Returns the module's docstring without name, key and versions, which have columns of their own."""
    header = " ".join((sys.modules[one.refuse.__module__].__doc__ or "").split())
    return _NAMED.sub(lambda found: f"{found[1]}. " if found[1] else "", header)


def commands() -> str:
    """Returns every command with its help text."""
    context = click.Context(korvet, info_name="korvet", **korvet.context_settings)
    return "\n\n".join(_command_help(korvet, context))


def tables() -> str:
    """Returns the tables that Spark makes of `__consumer_offsets`, and the answers, with their columns."""
    parts = []
    for table in (*TABLES.values(), *ANSWERS.values()):
        columns = [(f"`{column.name}`", f"`{column.type}`", column.about) for column in table.columns]
        parts.append(
            f"#### {table.name}\n\n{table.about} ({table.kind})\n\n"
            + _table(("column", "type", "meaning"), columns)
        )
    return "\n\n".join(parts)


def source_options() -> str:
    """Returns the options of Spark's source."""
    return _options(options.SOURCE)


def sink_options() -> str:
    """Returns the options of Spark's sink."""
    return _options((*options.KAFKA, *options.SINK))


def _options(declared: Iterable[options.Option]) -> str:
    rows = (
        (", ".join(f"`{name}`" for name in one.names), one.about, _value(one.default)) for one in declared
    )
    return _table(("option", "meaning", "default"), rows)


def alerts() -> str:
    """Returns the fields of the report's alerts, by their JSON schema."""
    schema = json.loads(
        files("korvet.spark.report").joinpath("assets", "alerts.schema.json").read_text("utf-8")
    )
    parts = {"field": schema} | {
        f"field of {name}": schema["$defs"][name.split()[-1]] for name in ("an alert", "a finding")
    }
    return "\n\n".join(
        _table(
            (title, "meaning"),
            ((f"`{name}`", field["description"]) for name, field in part["properties"].items()),
        )
        for title, part in parts.items()
    )


def prometheus_alerts() -> str:
    """Returns a table of Prometheus's alerts, from their annotations."""

    def link(page: re.Match[str]) -> str:
        title = (DOCS / page[1]).read_text().partition("\n")[0].removeprefix("# ")
        return f"[{title}](../{page[1]}{page[2] or ''})"

    groups = yaml.safe_load(ALERT_RULES.read_text())["groups"]
    alerting = (rule for group in groups for rule in group["rules"] if "alert" in rule)
    return _table(
        ("alert", "severity", "meaning", "what to do"),
        (
            (
                f"`{rule['alert']}`",
                rule["labels"]["severity"],
                *(_PAGE.sub(link, rule["annotations"][name]) for name in ("description", "action")),
            )
            for rule in alerting
        ),
    )


def redis_keys() -> str:
    """Returns a table of all keys in Redis, by the docstrings of Keyspace: `TYPE: contents`."""
    space = Keyspace()
    rows = []
    (kind,) = ast.parse(inspect.getsource(Keyspace)).body
    assert isinstance(kind, ast.ClassDef)
    for method in (node for node in kind.body if isinstance(node, ast.FunctionDef)):
        if method.name == "__init__":
            for target, text in pairwise(method.body):
                if isinstance(target, ast.Assign) and isinstance(text, ast.Expr):
                    rows.append(
                        _key(getattr(space, ast.unparse(target.targets[0]).removeprefix("self.")), text)
                    )
        elif method.name in EXAMPLES:
            rows.append(_key(getattr(space, method.name)(*EXAMPLES[method.name]), method.body[0]))
    return _table(("key", "type", "contents"), rows)


def _key(names: bytes | tuple[bytes, ...], docstring: ast.stmt) -> tuple[str, str, str]:
    kind, _, text = " ".join(ast.literal_eval(ast.unparse(docstring)).split()).partition(": ")
    names = names if isinstance(names, tuple) else (names,)
    return ", ".join(f"`{name.decode()}`" for name in names), kind.lower(), text


def redis_functions() -> str:
    """Returns a table of the functions of korvet's library, with the comments above their callbacks."""
    rows = []
    for path in sorted(Path(str(files("korvet"))).glob("*/lua/*.lua")):
        text = path.read_text("utf-8")
        for found in _REGISTERED.finditer(text):
            name, callback = found[1] or found[3], found[2] or found[4]
            comment = re.search(rf"((?:^--.*\n)+)local function {callback}\(", text, re.MULTILINE)
            if comment is not None:
                lines = (line.removeprefix("--").strip() for line in comment[1].splitlines())
                rows.append((f"`{name}`", " ".join(lines)))
    return _table(("function", "meaning"), sorted(rows))


def errors() -> str:
    """Returns a table of the errors that clients get for errors of storage, topics and others."""
    rows = [
        (code.name.upper(), f"`{kind.__name__}`", " ".join((inspect.getdoc(kind) or "").split()))
        for kind, code in api_errors._BY_TYPE.items()
    ]
    return _table(("error", "cause", "meaning"), sorted(rows))


def _command_help(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yields the help of a command and its subcommands. The width is fixed, independent of the terminal."""
    context.max_content_width = context.terminal_width = 100
    if not isinstance(command, click.Group):
        lines = command.get_help(context).splitlines()
        yield f"## {context.command_path}\n\n" + "\n".join(f"    {line}".rstrip() for line in lines)
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None:
            yield from _command_help(below, click.Context(below, parent=context, info_name=name))


def _value(value: object) -> str:
    if value is None or value == "":
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PARTS: dict[str, Callable[[], str]] = {
    "broker_settings": broker_settings,
    "topic_configs": topic_configs,
    "apis": apis,
    "clients": clients,
    "missing": missing,
    "commands": commands,
    "tables": tables,
    "metrics": metrics,
    "alerts": alerts,
    "losses": losses,
    "prometheus_alerts": prometheus_alerts,
    "source_options": source_options,
    "sink_options": sink_options,
    "redis_keys": redis_keys,
    "redis_functions": redis_functions,
    "errors": errors,
    "spark_support": spark_support.table,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

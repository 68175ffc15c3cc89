"""`korvet configs`: does for brokers and their loggers what kafka-configs does."""

import click
from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult

from korvet.cli import config_requests
from korvet.cli.client import Bootstrap, Cluster
from korvet.cli.config_requests import ResourceType
from korvet.cli.options import KeyValue, bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.config.kinds import ConfigSource

_DYNAMIC = (ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigSource.GROUP)
_SOURCES = {
    ConfigSource.DYNAMIC_BROKER: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "all brokers",
    ConfigSource.STATIC_BROKER: "at the start",
    ConfigSource.DEFAULT: "default",
    ConfigSource.DYNAMIC_BROKER_LOGGER: "broker",
    ConfigSource.GROUP: "group",
}
_group_option = click.option(
    "--group", metavar="NAME", default="", help="Configs of one consumer group or share group."
)


@click.group()
def configs() -> None:
    """Show and change settings of running brokers, and configs of groups."""


@configs.command("describe")
@click.option("--broker", metavar="ID", default="", help="One broker [all brokers].")
@_group_option
@click.option("--all", "all_settings", is_flag=True, help="Show what was not changed, too.")
@click.option("--loggers", is_flag=True, help="Show the log levels of the broker's modules.")
@bootstrap_option
@json_option
def describe_configs(
    broker: str, group: str, all_settings: bool, loggers: bool, bootstrap: Bootstrap, as_json: bool
) -> None:
    """Show the settings that were changed while brokers run."""
    kind = _kind(broker, group, loggers=loggers)
    if all_settings and not broker and not group:
        raise click.UsageError("--all needs --broker or --group")
    with Cluster(bootstrap) as cluster:
        found = config_requests.describe(cluster, kind, group or broker)
    shown = [
        each for each in found if all_settings or loggers or ConfigSource(each.config_source) in _DYNAMIC
    ]
    rows = [(each.name, _value(each), _SOURCES[ConfigSource(each.config_source)]) for each in shown]
    if as_json:
        print_json([{"setting": name, "value": value, "source": source} for name, value, source in rows])
    else:
        table(("SETTING", "VALUE", "SOURCE"), rows)


@configs.command("alter")
@click.option("--broker", metavar="ID", default="", help="One broker [all brokers].")
@_group_option
@click.option("--loggers", is_flag=True, help="Change the log levels of the broker's modules.")
@click.option(
    "-c", "--config", "pairs", type=KeyValue(), multiple=True, help="Setting to change. Repeatable."
)
@click.option("--unset", multiple=True, metavar="KEY", help="Setting to reset. Repeatable.")
@bootstrap_option
def alter_configs(
    broker: str,
    group: str,
    loggers: bool,
    pairs: tuple[tuple[str, str], ...],
    unset: tuple[str, ...],
    bootstrap: Bootstrap,
) -> None:
    """Change settings while brokers run, all of them or none.

    A value for one broker precedes a value for all brokers. Both precede the file, the environment and the
    flags, and survive restarts; log levels don't.
    """
    changes: dict[str, str | None] = {**dict(pairs), **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("nothing to change: give --config or --unset")
    kind = _kind(broker, group, loggers=loggers)
    with Cluster(bootstrap) as cluster:
        config_requests.alter(cluster, kind, group or broker, changes)
    changed = f"group {group}" if group else f"broker {broker}" if broker else "all brokers"
    click.echo(f"changed {changed}")


def _kind(broker: str, group: str, *, loggers: bool) -> ResourceType:
    if group and (broker or loggers):
        raise click.UsageError("--group goes without --broker and --loggers")
    if loggers and not broker:
        raise click.UsageError("--loggers needs --broker")
    if group:
        return ResourceType.GROUP
    return ResourceType.BROKER_LOGGER if loggers else ResourceType.BROKER


def _value(config: DescribeConfigsResourceResult) -> str:
    """The value as text; hidden if it is a secret, or of a setting that korvet doesn't have."""
    return "(hidden)" if config.is_sensitive else config.value or ""

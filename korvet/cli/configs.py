"""`korvet configs`: does for brokers and their loggers what kafka-configs does."""

import click
from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult

from korvet.cli import config_requests
from korvet.cli.client import Bootstrap, Cluster
from korvet.cli.config_requests import ResourceType
from korvet.cli.options import KeyValue, bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.config.kinds import ConfigSource

_DYNAMIC = (ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER)
_SOURCES = {
    ConfigSource.DYNAMIC_BROKER: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "all brokers",
    ConfigSource.STATIC_BROKER: "at the start",
    ConfigSource.DEFAULT: "default",
    ConfigSource.DYNAMIC_BROKER_LOGGER: "broker",
}


@click.group()
def configs() -> None:
    """Show and change settings of running brokers."""


@configs.command("describe")
@click.option("--broker", metavar="ID", default="", help="One broker [all brokers].")
@click.option("--all", "all_settings", is_flag=True, help="Show the broker's other settings, too.")
@click.option("--loggers", is_flag=True, help="Show the log levels of the broker's modules.")
@bootstrap_option
@json_option
def describe_configs(
    broker: str, all_settings: bool, loggers: bool, bootstrap: Bootstrap, as_json: bool
) -> None:
    """Show the settings that were changed while brokers run."""
    if (all_settings or loggers) and not broker:
        raise click.UsageError("--all and --loggers need --broker")
    with Cluster(bootstrap) as cluster:
        kind = ResourceType.BROKER_LOGGER if loggers else ResourceType.BROKER
        found = config_requests.describe(cluster, kind, broker)
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
@click.option("--loggers", is_flag=True, help="Change the log levels of the broker's modules.")
@click.option(
    "-c", "--config", "pairs", type=KeyValue(), multiple=True, help="Setting to change. Repeatable."
)
@click.option("--unset", multiple=True, metavar="KEY", help="Setting to reset. Repeatable.")
@bootstrap_option
def alter_configs(
    broker: str,
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
    if loggers and not broker:
        raise click.UsageError("--loggers needs --broker")
    with Cluster(bootstrap) as cluster:
        config_requests.alter(
            cluster, ResourceType.BROKER_LOGGER if loggers else ResourceType.BROKER, broker, changes
        )
    click.echo(f"changed {f'broker {broker}' if broker else 'all brokers'}")


def _value(config: DescribeConfigsResourceResult) -> str:
    """The value as text; hidden if it is a secret, or of a setting that korvet doesn't have."""
    return "(hidden)" if config.is_sensitive else config.value or ""

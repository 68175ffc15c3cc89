"""Options and argument types of several commands."""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click

from korvet.cli.client import Bootstrap
from korvet.cli.security import COMMAND_CONFIG, VARIABLE, ClientSecurity, CommandConfigError, from_file


def admin_option(admin_help: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the option --admin, as the argument `admins`. `more`: see click.option."""
    return click.option("--admin", "admins", multiple=True, metavar="HOST:PORT", help=admin_help, **more)


def security_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --command-config alone, as the argument `security`: a ClientSecurity."""
    return click.option(
        COMMAND_CONFIG,
        "security",
        metavar="FILE",
        envvar=VARIABLE,
        callback=lambda ctx, param, name: _security_of(name),
        help="Client properties for TLS, as for Kafka's tools.",
    )(command)


def bootstrap_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --bootstrap-server and --command-config, as the argument `bootstrap`: a Bootstrap."""
    brokers = click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT,...",
        default="127.0.0.1:9092",
        show_default=True,
        callback=_with_security,
        help="One or more brokers of the cluster. The first that answers is asked for the others.",
    )
    # Click processes eager options first, so the file's name is known to the callback above.
    properties = click.option(
        COMMAND_CONFIG,
        metavar="FILE",
        envvar=VARIABLE,
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="Client properties for TLS and SASL, as for Kafka's tools.",
    )
    return brokers(properties(command))


def _keep(ctx: click.Context, param: click.Parameter, name: str | None) -> None:
    ctx.meta[VARIABLE] = name


def _with_security(ctx: click.Context, param: click.Parameter, servers: str) -> Bootstrap:
    return Bootstrap(servers, _security_of(ctx.meta[VARIABLE]))


def _security_of(name: str | None) -> ClientSecurity:
    try:
        return ClientSecurity() if name is None else from_file(name)
    except CommandConfigError as error:
        raise click.BadParameter(str(error), param_hint=COMMAND_CONFIG) from error


json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON."
)


class KeyValue(click.ParamType[tuple[str, str]]):
    """An argument of the form `KEY=VALUE`."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Split at the first equals sign. Fails with click's error if there is none."""
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"expected KEY=VALUE, not {value!r}", param, ctx)
        return key, text


class Time(click.ParamType[int]):
    """A time in ISO 8601, in UTC unless it names an offset; the value is in ms since 1970."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Fails with click's error for other texts."""
        try:
            at = datetime.fromisoformat(str(value))
            if at.tzinfo is None:
                at = at.replace(tzinfo=UTC)
            at_ms = math.floor(at.timestamp() * 1000)
        except (ValueError, OverflowError):
            at_ms = -1
        # Negative numbers have other meanings in ListOffsets.
        if at_ms < 0:
            self.fail(f"expected a time such as 2026-01-31T12:00:00, not {value!r}", param, ctx)
        return at_ms


class Duration(click.ParamType[int]):
    """A duration such as `90m`, `1d12h` or ISO 8601's `PT1H30M`; the value is in ms."""

    name = "DURATION"
    # After `P`, the units of a time follow a `T`: `P1M` would be a month.
    _FORM = re.compile(
        r"(P)?(?:(\d{1,9})D)?(?(1)(?:T|$))(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d+)?)S)?",
        re.IGNORECASE,
    )

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Fails with click's error for other texts."""
        found = self._FORM.fullmatch(str(value))
        if found is None or not any(found.groups()[1:]):
            self.fail(f"expected a duration such as 90m, 1d12h or PT1H30M, not {value!r}", param, ctx)
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups()[1:])
        return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


def partition_count(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the option --partitions: a number of partitions, which is an int32 in Kafka's protocol."""
    return click.option("-p", "--partitions", type=click.IntRange(1, (1 << 31) - 1), help=text)


class Places(NamedTuple):
    """A topic, and some of its partitions; None for all."""

    topic: str
    partitions: frozenset[int] | None


class TopicPartitions(click.ParamType[Places]):
    """An argument of the form `TOPIC` or `TOPIC:0,3`. No topic's name contains a colon."""

    name = "TOPIC[:PARTITION,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Places:
        """Fails with click's error for other texts."""
        topic, colon, listed = str(value).partition(":")
        if not colon:
            return Places(topic, None)
        try:
            return Places(topic, frozenset(_whole(each) for each in listed.split(",")))
        except ValueError:
            self.fail(f"expected TOPIC or TOPIC:PARTITION,..., not {value!r}", param, ctx)


class PartitionOffset(click.ParamType[tuple[int, int]]):
    """An argument of the form `PARTITION=OFFSET`."""

    name = "PARTITION=OFFSET"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Fails with click's error for other texts."""
        partition, _, offset = str(value).partition("=")
        try:
            return _whole(partition), _whole(offset)
        except ValueError:
            self.fail(f"expected PARTITION=OFFSET, not {value!r}", param, ctx)


def _whole(text: str) -> int:
    """Returns a number of ASCII digits. Raises ValueError for other texts."""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)

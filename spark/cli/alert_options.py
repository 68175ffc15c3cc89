"""The options of alerts: thresholds, the exit status and JSON for schedulers, links into a console."""

# ruff: noqa: RUF009 (flag() makes fields of a dataclass)
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from korvet.spark.cli.declared import flag, with_options
from korvet.spark.report.alerts import check_console_url, severity_rank
from korvet.spark.report.thresholds import (
    CRITICAL,
    LIMITS,
    MAX_UNREAD,
    OFF,
    WARNING,
    Thresholds,
    parse_limit,
    read_thresholds,
)

NEVER = "never"
# The exit status by the worst severity. click itself uses 1 for errors and 2 for wrong options.
WARNING_STATUS, CRITICAL_STATUS = 3, 4
# The report is written, but not its pictures. An alert counts more.
PICTURES_STATUS = 5


def _limit(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    """The limit in ms or records, OFF for none, None if the option isn't given."""
    if value is None or parameter.name is None:
        return None
    number: object = int(value) if parameter.name == MAX_UNREAD and value.isdecimal() else value
    try:
        limit = parse_limit(parameter.name, number)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return OFF if limit is None else limit


def _console(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else check_console_url(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@dataclass(frozen=True, slots=True)
class AlertOptions:
    """The options of alerts on the command line. A limit is a number of ms or records, or OFF."""

    max_wait: int | str | None = flag(
        "--max-wait",
        metavar="DURATION",
        callback=_limit,
        help="Longest time that the first unread record of a partition may wait, such as 30s, 5m or 2h; off "
        "for no limit.  [default: 5m]",
    )
    max_unread: int | str | None = flag(
        "--max-unread",
        metavar="RECORDS",
        callback=_limit,
        help="Most unread records of a topic in a group.  [default: off]",
    )
    max_commit_age: int | str | None = flag(
        "--max-commit-age",
        metavar="DURATION",
        callback=_limit,
        help="Longest time since the last commit on a topic in a group.  [default: off]",
    )
    thresholds: Path | None = flag(
        "--thresholds",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="TOML file with limits by patterns of groups and topics. The options replace its defaults.",
    )
    fail_on: str = flag(
        "--fail-on",
        type=click.Choice([NEVER, WARNING, CRITICAL]),
        default=NEVER,
        show_default=True,
        help="Least severity that makes the exit status 3 (warning) or 4 (critical).",
    )
    as_json: bool = flag("--json", is_flag=True, help="Print the alerts as JSON, as in alerts.json.")
    console_url: str | None = flag(
        "--console-url",
        metavar="URL",
        callback=_console,
        help="Page of a group in a console, with {group} for its name. The report links to it.",
    )

    @property
    def limits(self) -> dict[str, int | None]:
        """The given limits; None is no limit."""
        given = {name: getattr(self, name) for name in LIMITS}
        return {name: None if limit == OFF else limit for name, limit in given.items() if limit is not None}

    def parsed_thresholds(self) -> Thresholds:
        """Return the file's thresholds, or the usual ones, with the limits of the command line as defaults.

        Raises ThresholdError.
        """
        base = Thresholds() if self.thresholds is None else read_thresholds(self.thresholds)
        return base.with_defaults(**self.limits)


with_alert_options = with_options(AlertOptions, "alerting")
"""Adds the options of alerts. The command gets them as one parameter `alerting`, AlertOptions."""


def exit_status(severity: str, fail_on: str) -> int:
    """Return the exit status for the worst severity of the alerts; 0 if it is less severe than `fail_on`."""
    if fail_on == NEVER or severity_rank(severity) > severity_rank(fail_on):
        return 0
    return CRITICAL_STATUS if severity == CRITICAL else WARNING_STATUS

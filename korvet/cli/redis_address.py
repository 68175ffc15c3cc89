"""Options for the address of the Redis that holds the data, for commands that read it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from korvet.config.settings import Config
from korvet.embedded import socket_of, url_of


class _DataDir(click.Path):
    """A folder. An empty name, as of a variable that isn't set, would be the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("expected a folder, not an empty name", param, ctx)
        return super().convert(value, param, ctx)


def data_dir_option(data_dir_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the option --data-dir, as the argument `data_dir`."""
    return click.option(
        "--data-dir",
        type=_DataDir(file_okay=False, path_type=Path),
        default=Config().data_dir,
        show_default=True,
        envvar="KORVET_DATA_DIR",
        help=data_dir_help,
    )


def redis_option(redis_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the option --redis, as the argument `url`, to a command that also has the option --data-dir."""
    return click.option(
        "--redis",
        "url",
        metavar="URL",
        envvar="KORVET_REDIS",
        callback=_unless_folder_is_named,
        help=redis_help,
    )


def _unless_folder_is_named(ctx: click.Context, param: click.Parameter, url: str | None) -> str | None:
    """A flag precedes a variable. Click processes the options of the command line first."""
    named = ctx.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE
    return None if named and ctx.get_parameter_source("url") is ParameterSource.ENVIRONMENT else url


def redis_options(redis_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options --redis, --data-dir and --keyspace as arguments `url`, `data_dir` and `keyspace`."""
    options = (
        redis_option(redis_help),
        data_dir_option(
            "Without --redis: the data folder of a running korvet with an embedded server. "
            "Given as an option, it precedes the variable KORVET_REDIS."
        ),
        click.option(
            "--keyspace",
            default=Config().keyspace,
            show_default=True,
            envvar="KORVET_KEYSPACE",
            help="Prefix of the keys.",
        ),
    )

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


def find_redis(url: str | None, data_dir: Path) -> str | None:
    """Returns the given URL, else the URL of the socket in a data folder, else None.

    Raises EmbeddedServerError if the socket's folder belongs to another user.
    """
    if url:
        return url
    path = socket_of(data_dir)
    return url_of(path.absolute()) if path is not None and path.exists() else None

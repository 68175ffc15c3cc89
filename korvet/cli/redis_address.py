"""Options for the address of the Redis that holds the data, for commands that read it."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from korvet.config.settings import Config
from korvet.embedded.sockets import socket_of, url_of
from korvet.redis.keys import Keyspace


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


class RedisSource(msgspec.Struct, frozen=True):
    """The Redis that holds the data, from the options --redis, --data-dir and --keyspace."""

    url: str | None
    data_dir: Path
    keyspace: str

    def find(self) -> str | None:
        """Returns the given URL, else the URL of the socket in the data folder, else None.

        Raises EmbeddedServerError if the socket's folder belongs to another user.
        """
        if self.url:
            return self.url
        path = socket_of(self.data_dir)
        return url_of(path.absolute()) if path is not None and path.exists() else None

    def found(self) -> str:
        """As `find`, but raises ClickException for None."""
        url = self.find()
        if url is None:
            raise click.ClickException(
                f"no embedded server runs on {self.data_dir}: give --redis or --data-dir"
            )
        return url


def keys_of(keyspace: str) -> Keyspace:
    """Returns the keys of a keyspace. Raises ClickException if it cannot have that name."""
    try:
        return Keyspace(keyspace)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def redis_options(redis_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options --redis, --data-dir and --keyspace, together as the argument `source`."""
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
        @functools.wraps(command)
        def with_source(*, url: str | None, data_dir: Path, keyspace: str, **others: Any) -> Any:
            return command(source=RedisSource(url, data_dir, keyspace), **others)

        for option in reversed(options):
            with_source = option(with_source)
        return with_source

    return with_options

"""The command group. A subcommand's module is imported when the command is used, so `korvet --help` is fast.

Other packages (the report, the demo) add commands through the entry point group `korvet.commands`. Errors
that a user can correct end in one line, not in a traceback.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from korvet.backup.errors import BackupError
from korvet.cli.client import ClientError
from korvet.config.errors import ConfigError
from korvet.embedded.errors import EmbeddedServerError
from korvet.redis.errors import StoreError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "korvet.commands"


class _Builtin(msgspec.Struct, frozen=True):
    module: str
    attribute: str
    summary: str


_BUILTIN = {
    "serve": _Builtin("korvet.cli.serve", "serve", "Run a broker."),
    "topics": _Builtin(
        "korvet.cli.topics",
        "topics",
        "List, create, describe, change and delete topics, and delete their records.",
    ),
    "configs": _Builtin("korvet.cli.configs", "configs", "Show and change settings of running brokers."),
    "groups": _Builtin(
        "korvet.cli.groups", "groups", "Show, reset and delete consumer groups: members, offsets, lag."
    ),
    "users": _Builtin(
        "korvet.cli.users", "users", "List, set and delete users that authenticate with SCRAM."
    ),
    "acls": _Builtin("korvet.cli.acls", "acls", "List, add and remove access control lists."),
    "quotas": _Builtin("korvet.cli.quotas", "quotas", "List, set and remove quotas of clients."),
    "transactions": _Builtin(
        "korvet.cli.transactions", "transactions", "List and describe transactions, and end hanging ones."
    ),
    "offsets": _Builtin("korvet.cli.offsets", "offsets", "Read the records of __consumer_offsets."),
    "top": _Builtin("korvet.cli.top", "top", "Watch brokers, topics and groups as they change."),
    "ready": _Builtin("korvet.cli.ready", "ready", "Probe the broker of this machine or container."),
    "doctor": _Builtin("korvet.cli.doctor", "doctor", "Check the Redis or Valkey that holds the data."),
    "backup": _Builtin("korvet.cli.backup", "backup", "Back up everything that a server or a cluster holds."),
    "restore": _Builtin("korvet.cli.restore", "restore", "Restore a backup, or check one."),
    "upgrade": _Builtin("korvet.cli.upgrade", "upgrade", "Finalise an upgrade of all brokers."),
    "repair": _Builtin("korvet.cli.repair", "repair", "Repair a damaged data folder of the embedded server."),
    "module": _Builtin(
        "korvet.cli.module", "module", "Show the path of the server module, for `loadmodule`."
    ),
    "rewrite": _Builtin(
        "korvet.cli.rewrite", "rewrite", "Make a data folder loadable without korvet's server module."
    ),
    "monitoring": _Builtin(
        "korvet.cli.monitoring", "monitoring", "Write the Prometheus rules and Grafana dashboards."
    ),
    "version": _Builtin("korvet.cli.version", "version", "Show the versions of korvet and its environment."),
}
# Help texts of entry points, so that `--help` needn't load them (Spark takes seconds).
_SUMMARIES = {
    "demo": "Watch Kafka clients, Redis and Spark work together on this machine.",
    "report": "Write a report on consumer groups: one HTML page and Parquet files.",
    "export": "Export topics, or tables about groups, once or continuously.",
    "jars": "Download jars for Spark (Kafka connector, Delta), pinned and verified.",
    "tables": "Keep tables about consumer groups up to date in a folder.",
}
# Modules that only an extra installs, with the name of the extra.
_EXTRA_OF = dict.fromkeys(("pyspark", "py4j", "pandas", "pyarrow", "numpy"), "spark")
# Modules that Windows lacks. Commands that use files and processes of a server need them.
_POSIX = {"fcntl", "pwd", "resource", "uvloop"}
_USER_ERRORS = (BackupError, ConfigError, EmbeddedServerError, ClientError, StoreError)


class KorvetGroup(click.Group):
    """A click group that imports commands on use and turns known errors into messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the built-in commands, then of the commands from entry points."""
        return [*_BUILTIN, *(name for name in sorted(_entry_points()) if name not in _BUILTIN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command. Raises click.ClickException if a required package is missing."""
        builtin = _BUILTIN.get(cmd_name)
        try:
            if builtin is not None:
                command = getattr(importlib.import_module(builtin.module), builtin.attribute)
            elif cmd_name in (points := _entry_points()):
                command = points[cmd_name].load()
            else:
                return None
        except ModuleNotFoundError as error:
            raise _missing(error, cmd_name) from error
        if not isinstance(command, click.Command):
            raise click.ClickException(f"the entry point {cmd_name!r} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in `--help`, without loading them."""
        rows = [(name, self._summary(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click.

        Raises ClickException with a hint if the entry point of a known command isn't installed.
        """
        if args and args[0] in _SUMMARIES and args[0] not in _entry_points():
            raise click.ClickException(
                f"`{args[0]}` is not installed with this korvet. "
                "Install the package itself as README.md says, or ./dev run korvet in a checkout."
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Errors that the user can correct end as `Error: ...` with status 1."""
        try:
            return super().invoke(ctx)
        except _USER_ERRORS as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            raise _missing(error, ctx.invoked_subcommand or "this command") from error
        except Exception as error:
            # Not imported above: `korvet serve` starts faster without redis-py.
            client = sys.modules.get("redis")
            if client is not None and isinstance(error, client.RedisError):
                raise click.ClickException(f"Redis: {error}") from error
            raise

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in _BUILTIN:
            return _BUILTIN[name].summary
        if name in _SUMMARIES:
            return _SUMMARIES[name]
        try:
            command = self.get_command(ctx, name)
        except (click.ClickException, ImportError) as error:
            return f"(cannot be loaded: {error})"
        return command.get_short_help_str() if command is not None else ""


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import, and rarely needed

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _missing(error: ModuleNotFoundError, command: str) -> Exception:
    """Returns a ClickException for a missing package of an extra.

    Also for one of Windows. Any other missing module is a bug: `error`.
    """
    module = (error.name or "").partition(".")[0]
    if sys.platform == "win32" and module in _POSIX:
        return click.ClickException(
            f"`{command}` does not run on Windows: use WSL or a container. Commands that ask brokers, as "
            "`korvet groups` and `korvet topics`, and those of Spark do."
        )
    extra = _EXTRA_OF.get(module)
    if extra is None:
        return error
    return click.ClickException(
        f"`{command}` needs the package {error.name}, which comes with the extra `{extra}`: "
        f"pip install 'korvet[{extra}]', or ./dev run korvet in a checkout."
    )


@click.group(cls=KorvetGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="korvet", message="%(prog)s %(version)s")
def korvet() -> None:
    """Kafka's protocol on Redis Streams.

    `korvet serve` runs a broker for unmodified Kafka clients. Topics are Redis streams. A commit is both a
    record in __consumer_offsets and an acknowledgement in the Redis group of the same name.
    """

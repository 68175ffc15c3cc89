"""`korvet restore`: writes a backup into an empty data folder, server or cluster."""

from pathlib import Path

import click
import msgspec

from korvet.backup.restore import check, restore_folder, restore_server
from korvet.cli.options import json_option
from korvet.cli.output import bytes_progress, print_json
from korvet.cli.redis_address import data_dir_option, redis_option
from korvet.cli.signals import exit_on_sigterm
from korvet.config.address import redacted


@click.command(short_help="Restore a backup, or check one.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@redis_option("An empty server, or nodes of an empty Redis Cluster, to restore into.")
@data_dir_option(
    "Without --redis: the data folder to restore into, which must not hold data. Given as an option, it "
    "precedes the variable KORVET_REDIS."
)
@click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --redis or --check: the folder for temporary files  [default: the system's folder].",
)
@click.option("--check", "only_check", is_flag=True, help="Verify and load the backup, and restore nothing.")
@json_option
def restore(
    folder: Path, url: str | None, data_dir: Path, scratch: Path | None, only_check: bool, as_json: bool
) -> None:
    """Restore the backup in FOLDER.

    The command first verifies the backup and loads it into a server of its own, which takes memory and disk
    space for all data. Then it writes the data to the empty target.

    Epochs, producer IDs and other numbers continue above every number that clients may have seen after the
    backup. Consumers that have read beyond the backup learn that the log was truncated.

    If the command fails or is killed, the target is without data, or brokers refuse it; run the command
    again before you start brokers. If the earlier run had completed the restore, the command reports that
    and changes nothing.

    \b
    korvet restore /backups/monday --data-dir ./korvet-data
    korvet restore /backups/monday --redis redis://host:6379
    korvet restore /backups/monday --check
    """
    with exit_on_sigterm(), bytes_progress("reading", "loading", "rewriting", "restoring") as report:
        if only_check:
            manifest = check(folder, scratch, report)
        elif url:
            manifest = restore_server(folder, url, scratch, report)
        else:
            manifest = restore_folder(folder, data_dir, report)
    if as_json:
        print_json(msgspec.to_builtins(manifest))
    elif only_check:
        click.echo(f"{folder} is sound: it can be restored")
    else:
        click.echo(
            f"{redacted(url) if url else data_dir} holds the keyspace {manifest.keyspace} as of "
            f"{manifest.created}"
        )

"""`korvet backup`: writes everything that a server or a cluster holds to a folder."""

import time
from pathlib import Path

import click
import msgspec

from korvet.backup import rotation
from korvet.backup.backup import back_up_folder, back_up_server
from korvet.backup.errors import BackupError
from korvet.backup.files import Report
from korvet.backup.restore import check
from korvet.cli.options import json_option
from korvet.cli.output import bytes_progress, print_json
from korvet.cli.redis_address import RedisSource, keys_of, redis_options
from korvet.cli.signals import exit_on_sigterm
from korvet.config.address import redacted
from korvet.embedded.errors import EmbeddedServerError


@click.command(short_help="Back up everything that a server or a cluster holds.")
@click.argument("folder", type=click.Path(path_type=Path))
@redis_options("The server to back up, or nodes of a Redis Cluster.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write to a new folder in FOLDER, named by the time; verify it; delete older ones, so that N stay.",
)
@json_option
def backup(folder: Path, source: RedisSource, keep: int | None, as_json: bool) -> None:
    """Write a backup to the new folder FOLDER.

    Brokers and clients continue during the backup. The backup is of one moment, and holds every record,
    commit and transaction that was acknowledged before the command began. It holds all keys of the server,
    also those of other applications. In a Redis Cluster, all primaries pause writes for some milliseconds.

    Without --redis, the command backs up the data folder, whether or not korvet runs on it.

    If the command fails or is killed, there is no folder of that name.

    With --keep, the new backup is loaded as by `korvet restore --check` before an older one is deleted. Until
    then its name ends with .unverified. If the check fails, that name and all older backups stay.

    \b
    korvet backup /backups --keep 7
    korvet backup /backups/monday
    korvet backup /backups/monday --redis redis://host:6379
    korvet backup /backups/monday --redis redis://node1:6379,node2:6379
    """
    keys = keys_of(source.keyspace)
    target = folder if keep is None else rotation.next_backup(folder.absolute(), time.time())
    deleted: list[Path] = []
    with exit_on_sigterm(), bytes_progress("loading", "receiving", "reading", "rewriting") as report:
        if source.url:
            manifest = back_up_server(source.url, keys, target, report)
        else:
            manifest = back_up_folder(source.data_dir, keys, target, report)
        if keep is not None:
            _verify(target, report)
            target = rotation.accept(target)
            deleted = rotation.rotate(target, keep)
    if as_json:
        kept = {} if keep is None else {"folder": str(target), "deleted": [*map(str, deleted)]}
        print_json(msgspec.to_builtins(manifest) | kept)
    else:
        click.echo(
            f"{target} holds the keyspace {manifest.keyspace} of "
            f"{redacted(source.url) if source.url else source.data_dir} as of "
            f"{manifest.created}: {manifest.topics} topics, {manifest.total_bytes} bytes"
        )
        for path in deleted:
            click.echo(f"deleted {path}")


def _verify(backup: Path, report: Report) -> None:
    """Load a backup. Raises BackupError."""
    try:
        # The folder of the backups has room for one more; the system's temporary folder may be in memory.
        check(backup, backup.parent, report)
    except (BackupError, EmbeddedServerError) as error:
        raise BackupError(
            f"{backup} could not be verified, and no older backup was deleted: {error}"
        ) from error

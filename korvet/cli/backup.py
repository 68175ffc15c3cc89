"""`korvet backup`: writes everything that a server holds to a folder."""

from pathlib import Path

import click
import msgspec

from korvet.backup.backup import back_up_folder, back_up_server
from korvet.cli.options import json_option
from korvet.cli.output import bytes_progress, print_json
from korvet.cli.redis_address import redis_options
from korvet.cli.signals import exit_on_sigterm
from korvet.config.address import redacted
from korvet.storage.keys import Keyspace


@click.command(short_help="Back up everything that a server holds.")
@click.argument("folder", type=click.Path(path_type=Path))
@redis_options("The server to back up. A Redis Cluster is refused.")
@json_option
def backup(folder: Path, url: str | None, data_dir: Path, keyspace: str, as_json: bool) -> None:
    """Write a backup to the new folder FOLDER.

    Brokers and clients continue during the backup. The backup is of one moment, and holds every record,
    commit and transaction that was acknowledged before the command began. It holds all keys of the server,
    also those of other applications.

    Without --redis, the command backs up the data folder, whether or not korvet runs on it.

    If the command fails or is killed, there is no folder of that name.

    \b
    korvet backup /backups/monday
    korvet backup /backups/monday --redis redis://host:6379
    """
    try:
        keys = Keyspace(keyspace)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    with exit_on_sigterm(), bytes_progress("loading", "receiving") as report:
        if url:
            manifest = back_up_server(url, keys, folder, report)
        else:
            manifest = back_up_folder(data_dir, keys, folder, report)
    if as_json:
        print_json(msgspec.to_builtins(manifest))
    else:
        click.echo(
            f"{folder} holds the keyspace {manifest.keyspace} of {redacted(url) if url else data_dir} as of "
            f"{manifest.created}: {manifest.topics} topics, {manifest.bytes} bytes"
        )

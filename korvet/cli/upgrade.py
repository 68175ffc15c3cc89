"""`korvet upgrade`: finalises an upgrade of all brokers."""

import asyncio
from pathlib import Path

import click

from korvet.cli.redis_address import find_redis, redis_options
from korvet.storage.errors import StorageError, StoreError
from korvet.storage.identity import finalise
from korvet.storage.keys import Keyspace
from korvet.storage.link.opening import connect
from korvet.storage.store import Store
from korvet.storage.versions import FORMATS


@click.command(short_help="Finalise an upgrade of all brokers.")
@redis_options("The Redis or Valkey that holds the data.")
def upgrade(url: str | None, data_dir: Path, keyspace: str) -> None:
    """Finalise an upgrade after all brokers run this release.

    Raises the format of the keyspace to the highest one of this release. Brokers of earlier releases that do
    not work with this format are refused from then on. The command changes nothing, and names the broker, if
    one that runs does not work with it.
    """
    found = find_redis(url, data_dir)
    if found is None:
        raise click.ClickException(f"no embedded server runs on {data_dir}: give --redis or --data-dir")
    try:
        keys = Keyspace(keyspace)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    before = asyncio.run(_finalise(found, keys))
    if before >= FORMATS.highest:
        click.echo(f"the keyspace {keyspace} has format {before} already")
    else:
        click.echo(f"the keyspace {keyspace} has format {FORMATS.highest} now; it had format {before}")


async def _finalise(url: str, keyspace: Keyspace) -> int:
    """Returns the format before. Raises StoreError."""
    router = await connect(url)
    try:
        # Opening a store would create a keyspace.
        exists = await router.links(keyspace.cluster).read.call("EXISTS", keyspace.cluster)
    finally:
        await router.close()
    if not exists:
        raise StoreError(f"there is no keyspace {keyspace.prefix!r}")
    store = await Store.open(url, keyspace)
    try:
        return await finalise(store.commands)
    except StoreError:
        raise
    except StorageError as error:
        raise StoreError(str(error)) from error
    finally:
        await store.close()

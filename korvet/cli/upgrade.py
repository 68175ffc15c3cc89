"""`korvet upgrade`: finalises an upgrade of all brokers."""

import asyncio

import click

from korvet.cli.redis_address import RedisSource, keys_of, redis_options
from korvet.cluster.identity import finalise
from korvet.cluster.versions import FORMATS
from korvet.redis.errors import StorageError, StoreError
from korvet.redis.keys import Keyspace
from korvet.redis.opening import connect
from korvet.store import Store


@click.command(short_help="Finalise an upgrade of all brokers.")
@redis_options("The Redis or Valkey that holds the data.")
def upgrade(source: RedisSource) -> None:
    """Finalise an upgrade after all brokers run this release.

    Raises the format of the keyspace to the highest one of this release. Brokers of earlier releases that do
    not work with this format are refused from then on. The command changes nothing, and names the broker, if
    one that runs does not work with it.
    """
    before = asyncio.run(_finalise(source.found(), keys_of(source.keyspace)))
    if before >= FORMATS.highest:
        click.echo(f"the keyspace {source.keyspace} has format {before} already")
    else:
        click.echo(f"the keyspace {source.keyspace} has format {FORMATS.highest} now; it had format {before}")


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

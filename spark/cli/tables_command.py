"""The commands `korvet tables`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from korvet.spark.cli.options import (
    KafkaOptions,
    RedisOptions,
    absolute,
    check_folder,
    interruptible,
    is_this_machine,
    master_option,
    named,
    progress,
    spark_session,
    tell,
    user_errors,
    with_kafka,
    with_redis,
)
from korvet.spark.cli.stored_session import stored_session
from korvet.spark.export.all_tables import update_tables
from korvet.spark.export.topics import check_topics
from korvet.spark.session.redaction import redacted
from korvet.spark.session.short_jvm import short_session
from korvet.spark.source.topics import OFFSETS_TOPIC
from korvet.spark.tables.readers import KafkaReader, RedisReader
from korvet.spark.tables.stored_tables import CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.spark.source.address import Address

# A year: longer ones are mistakes, and the longest don't fit into a clock.
_LONGEST_INTERVAL_S: Final = 366 * 86_400


def _number(context: click.Context, option: click.Parameter, given: float | None) -> float | None:
    # NaN is within every range.
    if given is not None and math.isnan(given):
        raise click.BadParameter("must be a number of seconds", context, option)
    return given


@click.group()
def tables() -> None:
    """Keep tables about consumer groups in a folder."""


@tables.command()
@click.option(
    "--to",
    "location",
    callback=named,
    metavar="FOLDER",
    required=True,
    help="Folder or URI of the tables. The first refresh creates it.",
)
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(1, _LONGEST_INTERVAL_S),
    callback=_number,
    help="Refresh at this interval, in one Spark session, until interrupted.",
)
@click.option("--compact", is_flag=True, help="Also merge the files of each day before today.")
@with_redis
@with_kafka
@master_option
def refresh(
    redis: RedisOptions,
    kafka: KafkaOptions,
    location: str,
    every_s: float | None,
    compact: bool,
    master: str,
) -> None:
    """Bring all tables in a folder up to date. They are Delta tables: run `korvet jars delta` once.

    \b
    A refresh reads the commits that are new, and counts the unread records of topics.
    An interrupted refresh leaves complete tables; the next one continues from there.

    \b
    korvet tables refresh --to /data/groups
    korvet tables refresh --to /data/groups --every 60
    korvet tables refresh --to lake/groups --compact
    korvet tables refresh --to /data/groups --bootstrap kafka:9092
    korvet export --table group_status --from /data/groups --to status.csv --format csv
    """
    with user_errors(), progress() as notify:
        refresh_tables(redis, kafka, location, master, notify, every_s=every_s, compact=compact)


def refresh_tables(
    redis: RedisOptions,
    kafka: KafkaOptions,
    location: str,
    master: str,
    notify: Callable[[str], None],
    *,
    every_s: float | None = None,
    compact: bool = False,
    options: Mapping[str, str] | None = None,
) -> None:
    """Update all tables in a folder, once or until interrupted. Raises as update_tables does."""
    location = absolute(location)
    if is_this_machine(master):
        check_folder(Path(location), make=False)
    source: Address | KafkaReader
    few = Path(location, CHECKPOINT).exists()
    if kafka.is_given:
        source, connector = kafka.reader()
    else:
        source, connector = redis.address(), []
        check_topics(source, [OFFSETS_TOPIC], options, streaming=True)
        few = few or RedisReader(source).has_few_records()
    short = short_session(master) if few and every_s is None else {}
    jars, conf = stored_session(location, master)
    notify("Starting Spark")
    session = spark_session("korvet tables", master, jars=[*connector, *jars], conf={**short, **conf})
    with session as spark, interruptible():
        notify("Updating the tables")
        update_tables(spark, source, location, every_s=every_s, compact=compact, options=options, tell=tell)
    click.echo(f"all tables: in {redacted(location)}")

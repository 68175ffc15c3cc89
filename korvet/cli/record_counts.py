"""The number of records between two offsets of a partition, for previews."""

from collections.abc import Mapping

import click

from korvet.cli import lag
from korvet.cli.client import Cluster
from korvet.cli.fetched_lag import is_dense
from korvet.cli.lag import NOTHING_UNREAD, Commit, Lag, LagUnknown
from korvet.cli.redis_address import RedisSource

Place = tuple[str, int]


def between(
    source: RedisSource, cluster: Cluster, spans: Mapping[Place, tuple[int, int]]
) -> dict[Place, int | None]:
    """Returns the number of records between two offsets of each partition, by topic and partition.

    It is negative if the second offset precedes the first. If Redis isn't reachable, it is the difference of
    dense offsets, and else None; then a line on standard error gives the reason.
    """
    ends = {Commit(*place, offset) for place, span in spans.items() for offset in span if span[0] != span[1]}
    try:
        lags = lag.measure(source, cluster.metadata([]).cluster_id, ends)
    except LagUnknown as error:
        dense = {topic for topic in {topic for topic, _ in spans} if is_dense(cluster, topic)}
        if any(topic not in dense for topic, _ in spans):
            click.echo(f"records are not counted: {error}; give --redis URL or --data-dir DIR", err=True)
        return {place: span[1] - span[0] if place[0] in dense else None for place, span in spans.items()}
    counts: dict[Place, int | None] = {}
    for place, span in spans.items():
        first, second = (lags.get(Commit(*place, offset), NOTHING_UNREAD) for offset in span)
        counts[place] = None
        if isinstance(first, Lag) and isinstance(second, Lag):
            counts[place] = first.records - second.records
    return counts

"""The lag of groups by Kafka's protocol alone, for when Redis isn't reachable.

Time lag is exact: the first unread record is fetched. A difference of offsets is a number of records only if
offsets are dense, so on topics with clock offsets the record lag stays unknown, unless nothing is unread.
"""

from collections.abc import Iterable, Sequence

from kio.schema.errors import ErrorCode

from korvet.cli import config_requests
from korvet.cli.client import ClientError, Cluster
from korvet.cli.config_requests import ResourceType
from korvet.cli.lag import NOTHING_UNREAD, Commit, Lag, Waiting, judged
from korvet.cli.log_requests import EARLIEST, LATEST, fetch, list_offsets

_ASSIGNMENT = "offset.assignment"
# Enough for one batch of most producers. A larger one arrives alone.
_PARTITION_BYTES = 64 * 1024


def measure(
    cluster: Cluster, commits: Iterable[Commit], now_ms: int
) -> tuple[dict[Commit, Lag | Waiting], list[ClientError]]:
    """Returns the lag of each commit, `Waiting` if the number of records is unknown, and the errors of the
    topics whose commits are left out. Raises ClientError if a broker doesn't answer.
    """
    existing = {str(topic.name): len(topic.partitions) for topic in cluster.metadata().topics}
    found: dict[Commit, Lag | Waiting] = {}
    by_topic: dict[str, list[Commit]] = {}
    for commit in commits:
        if commit.partition < existing.get(commit.topic, 0):
            by_topic.setdefault(commit.topic, []).append(commit)
        else:
            found[commit] = NOTHING_UNREAD
    errors = []
    for topic, of_topic in sorted(by_topic.items()):
        try:
            found |= _of_topic(cluster, topic, of_topic, now_ms)
        except ClientError as error:
            if error.code is None:
                raise
            errors.append(error)
    return found, errors


def _of_topic(
    cluster: Cluster, topic: str, commits: Sequence[Commit], now_ms: int
) -> dict[Commit, Lag | Waiting]:
    partitions = sorted({commit.partition for commit in commits})
    starts = list_offsets(cluster, topic, partitions, EARLIEST)
    ends = list_offsets(cluster, topic, partitions, LATEST)
    dense = is_dense(cluster, topic)
    found: dict[Commit, Lag | Waiting] = {}
    for commit in sorted(set(commits)):
        start, end = starts[commit.partition], ends[commit.partition]
        first = max(commit.offset, start)
        timestamp_ms = _first_timestamp(cluster, topic, commit.partition, first, end)
        lag: Lag | Waiting = NOTHING_UNREAD
        if timestamp_ms is not None:
            waiting_ms = max(0, now_ms - timestamp_ms)
            lag = Lag(end - first, waiting_ms) if dense else Waiting(waiting_ms)
        found[commit] = judged(lag, commit, (start, end), 0 if dense else None)
    return found


def is_dense(cluster: Cluster, topic: str) -> bool:
    """Whether offsets are known to be 0, 1, 2, ...; a broker without the config is Kafka's."""
    try:
        configs = {
            each.name: each.value for each in config_requests.describe(cluster, ResourceType.TOPIC, topic)
        }
    except ClientError as error:
        if error.code is not ErrorCode.topic_authorization_failed:
            raise
        return False
    return configs.get(_ASSIGNMENT, "dense") == "dense"


def _first_timestamp(cluster: Cluster, topic: str, partition: int, first: int, end: int) -> int | None:
    """Returns the timestamp of the first record in [first, end); None if there is none."""
    while first < end:
        fetched = fetch(cluster, topic, {partition: first}, 0, _PARTITION_BYTES)[partition]
        if fetched.records:
            return fetched.records[0].timestamp_ms
        if fetched.next_offset <= first:
            # The log has ended before: its tail was deleted.
            return None
        first = fetched.next_offset
    return None

"""Finds the logs of a fetch's partitions, with the rights of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.api.common.leader_epochs import check_leader_epoch
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection

    from korvet.api.common.context import Client
    from korvet.api.common.services import Services
    from korvet.api.fetching.params import FetchParams
    from korvet.api.fetching.partition import FetchedPartition
    from korvet.log.partition_log import PartitionLog
    from korvet.security.authorizer import Access


class Locator:
    """Locates partitions for one connection."""

    __slots__ = ("_access", "_access_version", "_client", "_topics", "_watcher")

    def __init__(self, services: Services, client: Client) -> None:
        self._topics = services.topics
        self._watcher = services.native_watcher
        self._client = client
        self._access: Access | None = None
        self._access_version = -1

    def have_rights_changed(self) -> bool:
        """Whether the client's rights differ from those at the last call: then located partitions are void.
        At the first call: whether the client has any limited rights.
        """
        access = self._client.session.access
        version = -1 if access is None else access.version
        if access is self._access and version == self._access_version:
            return False
        self._access, self._access_version = access, version
        return True

    @property
    def knows_listened_ends(self) -> bool:
        """Whether this broker knows the ends of all logs that are listened to, without asking Redis."""
        return self._watcher.is_current

    def unread(
        self, partitions: Collection[FetchedPartition], params: FetchParams, total: int
    ) -> list[FetchedPartition] | None:
        """Locate the partitions, which are all of the fetch's `total` ones that may have news. Returns those
        to read at once; none of them if the fetch is answered now; None if it can wait for a log to change.

        Unknown and denied partitions have no log, and do not end the wait for the others. Any other error is
        returned at once.
        """
        unread, without_log, failed = [], 0, False
        reads_at_end, is_committed = params.reads_at_end, params.is_committed
        knows_ends = not reads_at_end or self.knows_listened_ends
        for partition in partitions:
            log = partition.log
            if log is None or log.state.refusal is not None:
                log = self._locate(partition)
            elif partition.leader_epoch not in (-1, log.leader_epoch):
                partition.error = check_leader_epoch(partition.leader_epoch, log)
            if log is None:
                without_log += 1
            elif partition.error is not ErrorCode.none:
                failed = True
            elif not partition.is_at_end(log.state, is_committed=is_committed):
                if partition.max_bytes < 0 or params.max_bytes < 0:
                    # As in Kafka: nothing is read with a negative limit.
                    partition.error = ErrorCode.unknown_server_error
                    failed = True
                else:
                    unread.append(partition)
            elif not knows_ends or (reads_at_end and partition.listened_log is not log):
                unread.append(partition)
        is_answered_now = failed or without_log == total
        return unread if unread or is_answered_now else None

    def _locate(self, partition: FetchedPartition) -> PartitionLog | None:
        """Set the partition's log, and the error that the client gets for the partition."""
        partition.log = None
        name: str | None
        if isinstance(partition.topic, str):
            topic, name = self._topics.get(partition.topic), partition.topic
            unknown = ErrorCode.unknown_topic_or_partition
        else:
            topic = None if partition.topic is None else self._topics.by_id(partition.topic)
            name = None if topic is None else topic.name
            unknown = ErrorCode.unknown_topic_id
        access = self._client.session.access
        if not (access is None or name is None or access.allows(Operation.READ, ResourceType.TOPIC, name)):
            partition.error = ErrorCode.topic_authorization_failed
            return None
        if topic is None:
            self._topics.missed()
            partition.error = unknown
            return None
        log = partition.log = self._topics.log_of(topic, partition.index)
        if log is None:
            partition.error = ErrorCode.unknown_topic_or_partition
        else:
            partition.error = check_leader_epoch(partition.leader_epoch, log)
        return log

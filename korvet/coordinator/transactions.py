"""The transaction coordinator for the rest of the broker: requests in, replies out, for all 50 partitions of
`__transaction_state`.

The topic is created when the first transactional producer comes, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.causes import Causes
from korvet.coordinator.loader import TransactionsLoader
from korvet.coordinator.partitions import Partitions
from korvet.coordinator.served import RELEASE_TIMEOUT_MS
from korvet.coordinator.steady_clock import SteadyClock
from korvet.coordinator.transaction_term import TransactionTerm, refuse_transaction
from korvet.offsets.transaction_log import transaction_partition_for
from korvet.redis.errors import StorageError
from korvet.redis.futures import awaited
from korvet.redis.keys import TRANSACTIONS_TOPIC
from korvet.topics.configs import DEFAULT_MAX_MESSAGE_BYTES
from korvet.topics.internal import coordinated_topic
from korvet.transactions.shard import TransactionCounts, TransactionShard

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.producer_ids import ProducerIds
    from korvet.coordinator.markers import MarkerWriter
    from korvet.coordinator.partitions import LoadCounts
    from korvet.coordinator.peers import Peers
    from korvet.coordinator.served import Claim, Done
    from korvet.coordinator.transaction_term import Handler, TransactionRequest
    from korvet.log.broker_logs import Logs
    from korvet.transactions.config import TransactionConfig
    from korvet.transactions.messages import (
        AddReply,
        AddRequest,
        ListedTransaction,
        ListRequest,
        Markers,
    )

logger = logging.getLogger(__name__)
causes = Causes(logger)

TRANSACTIONS_PARTITIONS: Final = 50


class TransactionService:
    """Coordinates the transactional ids whose partition this broker leads. Use from one event loop."""

    def __init__(
        self,
        logs: Logs,
        catalogue: Catalogue,
        producer_ids: ProducerIds,
        config: TransactionConfig,
        markers: MarkerWriter,
        peers: Peers | None = None,
        clock: SteadyClock | None = None,
        *,
        topic_partitions: int = TRANSACTIONS_PARTITIONS,
        message_max_bytes: Callable[[], int] = lambda: DEFAULT_MAX_MESSAGE_BYTES,
        release_timeout_ms: int = RELEASE_TIMEOUT_MS,
    ) -> None:
        """clock: of the partitions. peers: required if there may be other brokers.
        topic_partitions: of a topic that is still to be created. message_max_bytes: of a record, unless
        the topic's max.message.bytes differs. release_timeout_ms: see Claim.
        """
        self._topic_partitions = topic_partitions
        self._logs = logs
        self._producer_ids = producer_ids
        self._catalogue = catalogue
        self._config = config
        self._markers = markers
        self._partitions: Partitions[TransactionTerm] = Partitions(
            logs,
            TRANSACTIONS_TOPIC,
            clock or SteadyClock(),
            self._read,
            message_max_bytes=message_max_bytes,
            release_timeout_ms=release_timeout_ms,
        )
        self.counts = TransactionCounts()
        """What is counted of the transactions."""
        self._free_producer_ids: list[int] = []
        # Producer IDs below this one were taken before a restore, and would be fenced.
        self._first_producer_id = 0
        self._refilling = False
        self._creating = asyncio.Lock()
        self._peers = peers
        if peers is not None:
            peers.serve_adds(self._add)

    # Life cycle

    def follow_assignment(self) -> None:
        """Load the partitions that this broker leads now; unload those that it does not lead, or leads in
        a later epoch.
        """
        self._partitions.follow(self._catalogue.get(TRANSACTIONS_TOPIC))

    async def make_topic(self) -> None:
        """Create `__transaction_state` if it does not exist; serve its partitions that this broker leads.
        Raises StorageError.
        """
        if self._partitions.topic is not None:
            return
        async with self._creating:
            await coordinated_topic(self._catalogue, TRANSACTIONS_TOPIC, self._topic_partitions)
            self.follow_assignment()

    def partition_of(self, transactional_id: str) -> tuple[str, int]:
        """The partition of `__transaction_state` that holds a transactional id, by name and number."""
        topic = self._catalogue.get(TRANSACTIONS_TOPIC)
        count = self._topic_partitions if topic is None else topic.partitions
        return TRANSACTIONS_TOPIC, transaction_partition_for(transactional_id, count)

    @property
    def loads(self) -> LoadCounts:
        """What is counted of the loading of partitions."""
        return self._partitions.counts

    async def wait_loaded(self) -> None:
        """Wait until every partition serves or is coordinated by another broker."""
        await self._partitions.wait_loaded()

    @property
    def served(self) -> int:
        """How many partitions are served."""
        return self._partitions.served

    @property
    def loading(self) -> int:
        """How many partitions are being loaded."""
        return self._partitions.loading

    async def close(self) -> None:
        """Refuse waiting requests and stop. Everything that was promised is in the log."""
        await self._partitions.close()

    # Requests

    async def call(self, transactional_id: str, handler: Handler, request: TransactionRequest) -> Any:
        """Let `handler`, one of TransactionShard's request handlers, handle a request. Returns its reply,
        which has the type that belongs to the request, also for errors. Raises StorageError if Redis
        gives no producer ids.
        """
        if not self._free_producer_ids:
            self._free_producer_ids.append(await self._producer_ids.allocate())
        return await awaited(partial(self.submit, transactional_id, handler, request))

    def submit(
        self, transactional_id: str, handler: Handler, request: TransactionRequest, done: Done
    ) -> None:
        """`call` for requests that need no producer id: done(reply) is called once, possibly before this
        returns; replies of a partition come in the order of their requests.
        """
        if not self._partitions:
            done(refuse_transaction(request, ErrorCode.coordinator_not_available))
            return
        partition = self._partitions[transaction_partition_for(transactional_id, len(self._partitions))]
        if partition.term is None:
            done(refuse_transaction(request, partition.error))
        else:
            partition.term.submit(handler, request, done)

    def add(self, request: AddRequest, done: Callable[[AddReply], None]) -> None:
        """Add partitions to a transaction, or verify that they are in it, on whichever broker coordinates
        it; `done` as in `submit`.
        """
        place = self.partition_of(request.transactional_id)
        if self._peers is None or self._logs.leader_epoch_of(*place) is not None:
            self._add(request, done)
        else:
            self._peers.add(place, request, done)

    def _add(self, request: AddRequest, done: Callable[[AddReply], None]) -> None:
        self.submit(request.transactional_id, TransactionShard.add_partitions, request, done)

    async def list_transactions(self, request: ListRequest) -> tuple[ErrorCode, list[ListedTransaction]]:
        """The transactions that this broker coordinates; an error if some of them are being loaded or
        fail now.
        """
        listed: list[ListedTransaction] = []
        for partition in self._partitions:
            if partition.term is not None:
                submit = partial(partition.term.submit, TransactionShard.list_transactions, request)
                reply = await awaited(submit)
                if reply.error not in (ErrorCode.none, ErrorCode.not_coordinator):
                    return reply.error, []
                listed += reply.transactions
            elif partition.epoch is not None:
                return partition.error, []
        return ErrorCode.none, listed

    @property
    def shards(self) -> list[TransactionShard]:
        """The loaded shards, to look at only."""
        return [partition.term.shard for partition in self._partitions if partition.term is not None]

    def _take_producer_id(self) -> int | None:
        while self._free_producer_ids:
            taken = self._free_producer_ids.pop()
            if taken >= self._first_producer_id:
                return taken
        if not self._refilling and not self._partitions.closed:
            self._refilling = True
            self._partitions.spawn(self._refill)
        return None

    async def _refill(self) -> None:
        try:
            self._free_producer_ids.append(await self._producer_ids.allocate())
        except StorageError as error:
            causes.warn(error, "no producer id is available yet: %s", error, work="producer ids")
        else:
            causes.ended("producer ids")
        self._refilling = False

    # Partitions

    async def _read(self, claim: Claim) -> TransactionTerm:
        first_id = self._first_producer_id = await self._producer_ids.first()
        shard = TransactionShard(
            self._config, self._take_producer_id, first_producer_id=first_id, counts=self.counts
        )
        if claim.log_end > 0:
            await TransactionsLoader(claim.log).replay_into(shard)
        return TransactionTerm(shard, claim, self._mark)

    def _mark(self, term: TransactionTerm, markers: Markers) -> None:
        self._partitions.spawn(
            partial(self._markers.write, markers, term.leader_epoch, term.written, lambda: term.closed)
        )

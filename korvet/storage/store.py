"""Opening the store: one server or a cluster, checks of the servers, the library, the keyspace's identity and
the broker's place among the live ones.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.offsets.packing import SEQUENCE_BITS
from korvet.offsets.wire import uuid_text
from korvet.storage.brokers.claims import packed_claim
from korvet.storage.brokers.membership import Membership
from korvet.storage.catalogue import Catalogue
from korvet.storage.errors import (
    FencedEpoch,
    LinkLost,
    Loading,
    StorageError,
    StoreError,
    TopicGone,
    domain_error,
)
from korvet.storage.fields import shown
from korvet.storage.ids import random_uuid
from korvet.storage.link.address import DEFAULT_TIMEOUT_MS, parse_url
from korvet.storage.link.cluster import Cluster
from korvet.storage.link.commands import Commands
from korvet.storage.link.eviction import may_evict_ours, parse_info
from korvet.storage.link.library import ensure_library
from korvet.storage.link.redis_link import RedisLink
from korvet.storage.link.server import OneServer, Server
from korvet.storage.log.native_watcher import NativeWatcher
from korvet.storage.log.partition_log import PartitionLog
from korvet.storage.log.readahead import DEFAULT_BYTES as DEFAULT_READAHEAD_BYTES
from korvet.storage.log.readahead import ReadAheadBudget
from korvet.storage.log.resources import DEFAULT_LEAD_CAP_MS, LogResources
from korvet.storage.log.tail_cache import DEFAULT_BYTES, TailBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from korvet.config.address import Address
    from korvet.storage.catalogue import ConfigProblem
    from korvet.storage.keys import Keyspace
    from korvet.storage.link.address import RedisAddress
    from korvet.storage.link.server import Router
    from korvet.storage.topic import Topic

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 2
# Functions, entries-added and XINFO's first entry came with Redis 7.0; Valkey's first own release is 7.2.
_OLDEST_REDIS: Final = (7, 0, 0)
_OLDEST_VALKEY: Final = (7, 2, 0)
# A server that still reads its files answers LOADING; large ones take a while.
_LOADING_TIMEOUT_S: Final = 120.0
_LOADING_POLL_S: Final = 0.1
# Producer ids that are taken from Redis at once: fewer than the 1,024 that it has for each ms of its clock.
_PRODUCER_ID_BLOCK: Final = 1000
# As Kafka writes UUIDs; what an operator has chosen may be longer.
_CLUSTER_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,100}")
_OPTIONAL_COMMANDS: Final = ("WAITAOF", "XACKDEL", "XDELEX")


class Store:
    """One keyspace in one Redis, or in a cluster of them."""

    def __init__(
        self,
        keyspace: Keyspace,
        router: Router,
        *,
        watch_interval_ms: int,
        lead_cap_ms: int,
        tails: TailBudget,
        readaheads: ReadAheadBudget,
        config_problem: ConfigProblem,
    ) -> None:
        """Use `open`."""
        self.commands = Commands(keyspace, router)
        self.router = router
        self.resources = LogResources(
            self.commands,
            lead_cap_ms=lead_cap_ms,
            tails=tails,
            readaheads=readaheads,
            watcher=NativeWatcher(watch_interval_ms),
        )
        self.resources.on_fenced = self.fenced
        self.resources.writes_refused = self._writes_refused
        self.catalogue = Catalogue(self.commands, config_problem, self.update_logs, self.close_logs)
        router.on_up = self._forget_contents
        router.on_moved = self._moved
        self.on_moved: list[Callable[[PartitionLog], None]] = []
        """All called for each log that another server took over, which may lack what was written last."""
        self.membership: Membership | None = None
        """None for tools, which are no brokers and are fenced by nobody."""
        self.server = ""
        """Kind and version of the server, such as "valkey 9.1.2"."""
        self.features: frozenset[str] = frozenset()
        """Optional commands that the server has: WAITAOF, XACKDEL, XDELEX."""
        # By topic and partition.
        self._logs: dict[str, dict[int, PartitionLog]] = {}
        self._producer_ids = range(0)
        self._producer_id_lock = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        url: str,
        keyspace: Keyspace,
        *,
        node_id: int | None = None,
        endpoint: Address | None = None,
        listeners: Mapping[str, Address] | None = None,
        watch_interval_ms: int = 75,
        lease_ms: int = 5000,
        lead_cap_ms: int = DEFAULT_LEAD_CAP_MS,
        tail_cache_bytes: int = DEFAULT_BYTES,
        readahead_bytes: int = DEFAULT_READAHEAD_BYTES,
        config_problem: ConfigProblem = lambda name, value: None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> Store:
        """Connect and check everything that would otherwise fail later.

        With `node_id` and `endpoint`, where clients find it, this process becomes a live broker of the
        keyspace; tools leave them out. `listeners` are the endpoints by name where there are several.
        `timeout_ms`: how long a connection may be silent while it is asked something.

        Raises StoreError with a message for the terminal: unreachable,
        refused, too old, a replica, an eviction policy that may drop our keys, another format,
        the node id taken by another broker.
        """
        router, server = await connect(url, timeout_ms)
        store = cls(
            keyspace,
            router,
            watch_interval_ms=watch_interval_ms,
            lead_cap_ms=lead_cap_ms,
            tails=TailBudget(tail_cache_bytes),
            readaheads=ReadAheadBudget(readahead_bytes),
            config_problem=config_problem,
        )
        try:
            store.server = server
            await store._prepare()
            if node_id is not None:
                assert endpoint is not None
                store.membership = await Membership.join(
                    store.commands, store.catalogue, node_id, endpoint, lease_ms, listeners
                )
                store.membership.attach(store)
            await store.catalogue.load()
        except BaseException as error:
            await store.close()
            if isinstance(error, StorageError) and not isinstance(error, StoreError):
                raise StoreError(f"Redis at {parse_url(url)[0]}: {error}") from error
            raise
        return store

    async def _prepare(self) -> None:
        servers = self.router.servers()
        await asyncio.gather(*(ensure_library(server.write) for server in servers))
        found = await asyncio.gather(*(_features(server.write) for server in servers))
        self.features = frozenset.intersection(*found)
        cluster, prefix = self.commands.keyspace.cluster, self.commands.keyspace.prefix
        await self._check_not_orphaned()
        fresh = uuid_text(random_uuid().bytes)
        for field, value in (("id", fresh), ("format", FORMAT_VERSION), ("sequence_bits", SEQUENCE_BITS)):
            await self.commands.call("HSETNX", cluster, field, value)
        cluster_id, version, bits = await self.commands.call(
            "HMGET", cluster, "id", "format", "sequence_bits"
        )
        if version != b"%d" % FORMAT_VERSION:
            raise StoreError(
                f"keyspace {prefix!r} has format {shown(version)}; this korvet works with "
                f"format {FORMAT_VERSION} only"
            )
        if bits != b"%d" % SEQUENCE_BITS:
            raise StoreError(
                f"keyspace {prefix!r} was made with {shown(bits)} sequence bits, not "
                f"{SEQUENCE_BITS}: its offsets would mean other entries"
            )
        if not _CLUSTER_ID.fullmatch(cluster_id):
            raise StoreError(f"the cluster id of keyspace {prefix!r} is damaged: {shown(cluster_id)}")
        self.commands.cluster_id = cluster_id.decode()

    async def _check_not_orphaned(self) -> None:
        """Refuse topics whose cluster is gone: a new cluster would take their records for its own."""
        keys = self.commands.keyspace
        if await self.commands.call("HEXISTS", keys.cluster, "id") or not await self.commands.call(
            "EXISTS", keys.topics
        ):
            return
        raise StoreError(
            f"keyspace {keys.prefix!r} has topics but no cluster id: {keys.cluster.decode()} was lost. "
            f"Restore it from a backup, or give it a new id: HSET {keys.cluster.decode()} id "
            f"{uuid_text(random_uuid().bytes)}"
        )

    def log(self, topic: Topic, partition: int) -> PartitionLog:
        """The one PartitionLog of a partition; made when first asked for."""
        logs = self._logs.get(topic.name)
        if logs is None:
            logs = self._logs[topic.name] = {}
        found = logs.get(partition)
        if found is None or (found.topic is not topic and found.topic.topic_id != topic.topic_id):
            found = logs[partition] = self._new_log(topic, partition)
        return found

    def _new_log(self, topic: Topic, partition: int) -> PartitionLog:
        if self.membership is None:
            return PartitionLog(self.resources, topic, partition)
        epoch = self.membership.leads(topic.name, partition)
        made = PartitionLog(self.resources, topic, partition, epoch)
        if epoch is None:
            made.close(self._not_ours(topic.name, partition))
        else:
            # Before the log's first append, so that whoever led it before is refused from then on.
            claim = packed_claim(self.commands.keyspace, topic, partition, epoch)
            made.links.write_functions.send(claim, self._claimed)
        return made

    def _claimed(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError) and isinstance(refusal := domain_error(reply), FencedEpoch):
            self.fenced(refusal)

    def leads(self, topic: str, partition: int) -> int | None:
        """The leader epoch in which this process leads a partition; None where it does not. Without a
        membership there is nobody else: 0.
        """
        return 0 if self.membership is None else self.membership.leads(topic, partition)

    def follow_assignment(self) -> None:
        """Close the logs of partitions that are led by others now; what is led by us now begins anew."""
        assert self.membership is not None
        for name, logs in self._logs.items():
            for partition, found in list(logs.items()):
                epoch = self.membership.leads(name, partition)
                if epoch != found.epoch:
                    del logs[partition]
                    found.close(self._not_ours(name, partition))

    async def settle(self) -> None:
        """See Follower: nothing is left to do."""

    def _writes_refused(self) -> StorageError | None:
        return None if self.membership is None else self.membership.writes_refused

    def _not_ours(self, topic: str, partition: int) -> StorageError:
        """Why we don't lead a partition."""
        assert self.membership is not None
        return self.membership.lost or FencedEpoch(f"this broker does not lead {topic}-{partition}")

    def fenced(self, refusal: FencedEpoch) -> None:
        """An append was refused because somebody else leads its partition."""
        if self.membership is not None:
            self.membership.refresh_soon(refusal)

    def update_logs(self, topic: Topic) -> None:
        """Tell the topic's logs its new configuration."""
        for found in self._logs.get(topic.name, {}).values():
            found.topic = topic

    def close_logs(self, name: str) -> None:
        """Refuse all further use of a topic's logs: its keys are about to go."""
        gone = TopicGone(f"topic {name} is deleted")
        for found in self._logs.pop(name, {}).values():
            found.close(gone)

    async def payload_bytes(self, topic: Topic) -> list[int]:
        """Bytes of all fields and values in each of a topic's partitions, whoever leads them. Raises
        StorageError. Function korvet_bounds.
        """
        keys = (
            self.commands.keyspace.partition_keys(topic.name, number)[:3]
            for number in range(topic.partitions)
        )
        calls = (self.commands.fcall("korvet_bounds", one, topic.bias, read=True) for one in keys)
        return [int(reply[3]) for reply in await asyncio.gather(*calls)]

    async def new_producer_id(self) -> int:
        """A producer id that nobody had before (KIP-98), even if Redis loses its last writes.

        Ids are taken from Redis in blocks. Raises StorageError. Function korvet_take_producer_ids.
        """
        async with self._producer_id_lock:
            if not self._producer_ids:
                arguments = self.commands.cluster_id, _PRODUCER_ID_BLOCK, self._producer_ids.stop
                first = await self.commands.fcall(
                    "korvet_take_producer_ids", [self.commands.keyspace.cluster], *arguments
                )
                self._producer_ids = range(first, first + _PRODUCER_ID_BLOCK)
            producer_id = self._producer_ids[0]
            self._producer_ids = self._producer_ids[1:]
            return producer_id

    def _forget_contents(self) -> None:
        """The connection was away: what Redis holds may have changed."""
        self.resources.tails.clear()
        self.resources.readaheads.clear()
        if self.membership is not None:
            self.membership.refresh_soon()

    async def close(self) -> None:
        """Give the lease back and close all connections."""
        await self.resources.watcher.close()
        for name in list(self._logs):
            self.close_logs(name)
        if self.membership is not None:
            await self.membership.leave()
        await self.router.close()

    def _moved(self, has_moved: Callable[[bytes], bool]) -> None:
        """Another server took some keys over."""
        moved = [found for logs in self._logs.values() for found in logs.values() if has_moved(found.stream)]
        for found in moved:
            found.moved()
            for callback in self.on_moved:
                callback(found)
        if moved:
            log.warning("another server, or one started again, holds %d logs now", len(moved))


async def connect(url: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> tuple[Router, str]:
    """Connect to a server, or to all primaries of the cluster that it belongs to.

    Returns also kind and version. Raises StoreError.
    """
    addresses = [msgspec.structs.replace(address, timeout_ms=timeout_ms) for address in parse_url(url)]
    first = await _first_link(addresses)
    try:
        info = await _info_when_loaded(first)
        clustered = info.get("cluster_enabled") == "1"
        if not clustered:
            if len(addresses) > 1:
                raise StoreError(f"Redis at {first.address} is no cluster: name one server only")
            server = _checked(info, first)
            if info.get("role") == "slave":
                raise StoreError(f"Redis at {first.address} is a replica: connect to its primary")
            one = Server(first, await RedisLink.connect(first.address, "korvet-read"))
            return OneServer(one), server
    except BaseException:
        await first.close()
        raise
    await first.close()
    cluster = await Cluster.open(addresses)
    try:
        for node in cluster.servers():
            server = _checked(await _info_when_loaded(node.write), node.write)
    except BaseException:
        await cluster.close()
        raise
    return cluster, server


async def _first_link(addresses: Sequence[RedisAddress]) -> RedisLink:
    """A link to the first server that can be reached."""
    for address in addresses[:-1]:
        try:
            return await _link_when_loaded(address)
        except StoreError as error:
            log.warning("%s", error)
    return await _link_when_loaded(addresses[-1])


async def _link_when_loaded(address: RedisAddress) -> RedisLink:
    """A link to a server, which may still have to read its files. Raises StoreError."""
    deadline_s = asyncio.get_running_loop().time() + _LOADING_TIMEOUT_S
    told = False
    while True:
        try:
            return await RedisLink.connect(address, "korvet-write")
        except StoreError as error:
            if not isinstance(error.__cause__, Loading) or asyncio.get_running_loop().time() > deadline_s:
                raise
        if not told:
            log.info("Redis at %s loads its data", address)
            told = True
        await asyncio.sleep(_LOADING_POLL_S)


def _checked(info: dict[str, str], link: RedisLink) -> str:
    """Refuse a server that we cannot work with; return its kind and version."""
    kind, text = (
        ("valkey", info["valkey_version"]) if "valkey_version" in info else ("redis", info["redis_version"])
    )
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    where = f"Redis at {link.address}"
    if version < (_OLDEST_VALKEY if kind == "valkey" else _OLDEST_REDIS):
        raise StoreError(f"{where} is {kind} {text}: Redis 7.0 or Valkey 7.2, or newer, is needed")
    policy = info.get("maxmemory_policy", "noeviction")
    if may_evict_ours(policy):
        raise StoreError(
            f"{where} may evict our keys (maxmemory-policy {policy}): set it to noeviction or volatile-*"
        )
    return f"{kind} {text}"


async def _info_when_loaded(link: RedisLink) -> dict[str, str]:
    """INFO as one dictionary, once the server has read its files."""
    deadline = asyncio.get_running_loop().time() + _LOADING_TIMEOUT_S
    while True:
        try:
            reply = await link.call("INFO")
            info = parse_info(reply)
            if info.get("loading", "0") == "0":
                return info
        except Loading:
            pass
        except LinkLost as lost:
            raise StoreError(f"Redis at {link.address}: {lost}") from lost
        except StorageError as fault:
            raise StoreError(f"Redis at {link.address} refuses INFO: {fault}") from fault
        if asyncio.get_running_loop().time() > deadline:
            raise StoreError(f"Redis at {link.address} still loads its data after {_LOADING_TIMEOUT_S:.0f} s")
        await asyncio.sleep(_LOADING_POLL_S)


async def _features(link: RedisLink) -> frozenset[str]:
    known = await link.call("COMMAND", "INFO", *_OPTIONAL_COMMANDS)
    return frozenset(name for name, found in zip(_OPTIONAL_COMMANDS, known, strict=True) if found)

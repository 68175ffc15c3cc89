"""`korvet doctor`: checks that this Redis is fit to hold the data, and that every entry has an offset."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from rich.console import Console
from rich.progress import Progress

from korvet.cli.ask_brokers import check_brokers
from korvet.cli.endpoints import endpoints_of
from korvet.cli.keyspace_checks import (
    check_shared,
    cluster_id_of,
    live_brokers,
    scan,
    shared_pattern,
)
from korvet.cli.memory import check_memory
from korvet.cli.options import admin_option, json_option, security_option
from korvet.cli.output import print_json, table
from korvet.cli.pending_checks import check_pending
from korvet.cli.redis_address import RedisSource, keys_of, redis_options
from korvet.cli.redis_servers import addresses_of, find_servers
from korvet.cli.security import ClientSecurity
from korvet.cluster.catalogue import parse_topic, without_bad_configs
from korvet.cluster.shared_configs import parse_broker_config
from korvet.config.address import redacted
from korvet.config.live import LiveConfig
from korvet.config.loading import load
from korvet.config.machine_memory import machine_memory_bytes
from korvet.config.settings import Config
from korvet.embedded.binary import OLDEST_VERSION, version_text
from korvet.embedded.disk_space import DiskSpace
from korvet.log.entries import is_damaged, record_count
from korvet.log.transactions import parse_open, parse_producer
from korvet.log.values import LAST_OFFSET
from korvet.offsets.packing import SEQUENCE_BITS, AddressError, id_parts, offset_of
from korvet.outlook.durability import Setup
from korvet.outlook.findings import (
    FAULT,
    OK,
    WARNING,
    Finding,
    OpenTransaction,
    TransactionNote,
    UnreadableTransactions,
    durability_findings,
    module_findings,
    transaction_findings,
)
from korvet.redis import server_facts
from korvet.redis.address import RedisAddress, SentinelAddress, parse_target
from korvet.redis.errors import StorageError
from korvet.redis.fields import read_fields
from korvet.redis.functions import library_name
from korvet.redis.keys import literal_pattern
from korvet.redis.link import RedisLink
from korvet.redis.sentinel import SentinelState, inspect, servers_of
from korvet.redis.server_module import Use, Verdict, look
from korvet.redis.slots import SLOTS, NodeAddress
from korvet.topics.configs import config_problem
from korvet.topics.levels import default_level, setup_of

if TYPE_CHECKING:
    import redis

    from korvet.cluster.topic import Topic

_Answer = TypeVar("_Answer")

_PAGE = 1_000
_LAST_MS = LAST_OFFSET >> SEQUENCE_BITS
# Entries of the first page: few, because they may be large.
_FIRST_PAGE = 32
_PAGE_BYTES = 4 << 20


@click.command(short_help="Check the Redis or Valkey that holds the data.")
@redis_options("The server to check.")
@admin_option("An admin endpoint of a broker to ask, also as URL; repeatable.")
@security_option
@json_option
def doctor(
    source: RedisSource,
    admins: tuple[str, ...],
    security: ClientSecurity,
    as_json: bool,
) -> None:
    """Check the Redis or Valkey that holds the data, its entries, open transactions, and what consumers of
    Redis groups have for long; and ask the brokers.

    Live brokers name their admin endpoints in Redis; --admin names further ones. A broker that cannot be
    asked is a warning. The token is read from KORVET_ADMIN_TOKEN.

    For topics without configs of their own, min.insync.replicas and acks.all.fsync are those that are set for
    all brokers in Redis, else those of this environment, as disk.reserve.bytes always is: options of `korvet
    serve` are not known.

    The exit status is 1 if there is a fault.
    """
    address, keyspace = source.found(), source.keyspace
    tls = security.tls
    named = endpoints_of(admins, tls)
    with contextlib.ExitStack() as stack:
        nodes = asyncio.run(servers_of(address))
        servers, silent = find_servers(nodes)
        clients = [stack.enter_context(client) for client in servers.values()]
        addresses = addresses_of(nodes[0], servers)
        sentinels = inspect_sentinels(address)
        named_replicas = max((state.replicas for state in sentinels), default=0)
        live, topics = _settings(clients, keyspace)
        setup = setup_of(
            topics,
            default_level(live.now),
            address,
            embedded=not source.url,
            reserve_bytes=live.now.disk_reserve_bytes,
            named_replicas=named_replicas,
        )
        streams, machine_bytes = streams_of(clients, keyspace), 0 if source.url else machine_memory_bytes()
        now_ms = time.time_ns() // 1_000_000
        findings = [
            *([] if source.url else check_folder(source.data_dir)),
            *check_sentinels(address, sentinels),
            *check_servers(servers, silent),
            *check_durability(_primaries(addresses, clients), setup),
            *check_modules(addresses),
            *check_shared(clients, keyspace),
            *check_types(clients, keyspace, streams),
            *check_entries(streams),
            *check_transactions(streams, now_ms),
            *check_pending(streams),
            *check_memory(clients, streams, keys_of(keyspace), live, topics, machine_bytes, now_ms),
        ]
        brokers, cluster_id = live_brokers(clients, keyspace), cluster_id_of(clients, keyspace)
    known = {each.subject for each in findings}
    findings += check_brokers(brokers, named, None if source.url else source.data_dir, cluster_id, known, tls)
    _show(findings, source.url, as_json=as_json)
    if any(finding.state == FAULT for finding in findings):
        raise SystemExit(1)


def _show(findings: Sequence[Finding], url: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json([finding._asdict() for finding in findings])
        return
    if url:
        click.echo(f"{redacted(url)}\n")
    table(("", "CHECK", "FOUND"), [(f.state, f.subject, f.text) for f in findings])


def check_folder(data_dir: Path) -> Iterator[Finding]:
    """Check the free space of the disk of an embedded server's data folder."""
    disk = DiskSpace(data_dir, _environment().disk_reserve_bytes)
    disk.check()
    text = f"{disk.free_bytes} bytes are free, {disk.reserve_bytes} are reserved (disk.reserve.bytes)"
    if disk.is_short:
        text += ": clients' records are refused; delete topics or records, or enlarge the disk"
    yield Finding("disk", FAULT if disk.is_short else OK, text)


def inspect_sentinels(url: str) -> list[SentinelState]:
    """Ask the sentinels of a URL, which may name none."""
    target = parse_target(url)
    return asyncio.run(inspect(target)) if isinstance(target, SentinelAddress) else []


def check_sentinels(url: str, states: Sequence[SentinelState]) -> Iterator[Finding]:
    """Check that the sentinels of a URL agree, and can authorize a failover."""
    target = parse_target(url)
    if not isinstance(target, SentinelAddress):
        return
    for state in states:
        if state.problem:
            yield Finding(f"sentinel {state.address}", WARNING, state.problem)
    named = sorted({"{}:{}".format(*state.primary) for state in states if state.primary is not None})
    count = sum(not state.problem for state in states)
    text = f"{count} of {len(states)} can take part in a failover of {target.name!r}, {' or '.join(named)}"
    agree = len(named) == 1 and count == len(states)
    yield Finding("sentinels", OK if agree else WARNING, text)


def check_servers(
    servers: "Mapping[NodeAddress, redis.Redis]", silent: Mapping[NodeAddress, str]
) -> Iterator[Finding]:
    """Check each server. In a cluster, each finding names its node; `silent` are the primaries that do not
    answer, with the reasons.
    """
    if len(servers) == 1 and not silent:
        (client,) = servers.values()
        yield from check_server(client)
        return
    yield _cluster(next(iter(servers.values())), len(servers) + len(silent))
    for (host, port), reason in silent.items():
        yield Finding(f"server, {host}:{port}", FAULT, f"does not answer: {reason}")
    for (host, port), client in servers.items():
        for finding in check_server(client):
            yield finding._replace(subject=f"{finding.subject}, {host}:{port}")


def _cluster(client: "redis.Redis", primaries: int) -> Finding:
    text = cast("Any", client).execute_command("CLUSTER", "INFO").decode()
    state = dict(line.split(":", 1) for line in text.split())
    text = f"{primaries} primaries, {state['cluster_slots_ok']} of {SLOTS} slots served"
    return Finding("cluster", OK if state["cluster_state"] == "ok" else FAULT, text)


def check_server(client: "redis.Redis") -> Iterator[Finding]:
    """Check a server's version, role and function library."""
    info = client.info()
    yield check_version(info)
    if info["role"] != "master":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        text = f"replica of {primary}, which may lack acknowledged records; brokers use the primary: name it"
        yield Finding("role", FAULT, text)
    libraries = client.function_list(library_name())
    loaded = "loaded" if libraries else "not loaded; a broker loads it when it starts"
    yield Finding("Function library", OK if libraries else WARNING, loaded)


def _primaries(addresses: Sequence[RedisAddress], clients: "Sequence[redis.Redis]") -> list[RedisAddress]:
    """Returns the addresses of the primaries: a replica does not report the other replicas of its primary."""
    roles = (client.info("replication")["role"] for client in clients)
    return [address for address, role in zip(addresses, roles, strict=True) if role == "master"]


def check_durability(addresses: Sequence[RedisAddress], setup: Setup) -> Iterator[Finding]:
    """Report what each kind of failure can lose, and whether topics have the replicas that they ask for."""
    yield from durability_findings(asyncio.run(_ask_each(addresses, server_facts.ask)), setup)


async def _ask_each(
    addresses: Sequence[RedisAddress], ask: "Callable[[RedisLink], Awaitable[_Answer]]"
) -> "dict[str, _Answer | StorageError]":
    """What each server answers, or why it does not."""
    found = await asyncio.gather(*(_ask(address, ask) for address in addresses))
    return dict(zip(map(str, addresses), found, strict=True))


async def _ask(
    address: RedisAddress, ask: "Callable[[RedisLink], Awaitable[_Answer]]"
) -> "_Answer | StorageError":
    try:
        link = await RedisLink.connect(address, "korvet-doctor")
        try:
            return await ask(link)
        finally:
            await link.close()
    except StorageError as error:
        return error


def _settings(servers: "Sequence[redis.Redis]", keyspace: str) -> "tuple[LiveConfig, list[Topic]]":
    """The dynamic settings of all brokers on those of this environment, and the topics that can be read."""
    keys = keys_of(keyspace)
    hashes: dict[bytes, dict[bytes, bytes]] = {}
    for client in servers:
        # In a cluster, one server has the keys.
        for key in client.scan_iter(match=shared_pattern(keyspace), count=_PAGE, _type="hash"):
            if key in (keys.topics, keys.broker_configs):
                hashes[key] = cast("dict[bytes, bytes]", client.hgetall(key))
    live = LiveConfig(_environment())
    configs, _ = read_fields(hashes.get(keys.broker_configs, {}).items(), parse_broker_config)
    live.take({name: value for broker, name, value in configs if not broker}, {})
    topics, _ = read_fields(hashes.get(keys.topics, {}).items(), parse_topic)
    # Brokers skip such configs, too.
    return live, [without_bad_configs(each, config_problem)[0] for each in topics]


def _environment() -> Config:
    """The settings of this environment."""
    file = os.environ.get("KORVET_CONFIG")
    return load(file=Path(file) if file else None, environ=os.environ)


def _partitions(keyspace: str) -> str:
    """The pattern of the streams of partitions."""
    return f"{literal_pattern(keyspace)}:*"


def check_modules(addresses: Sequence[RedisAddress]) -> Iterator[Finding]:
    """Check which servers may append by the server module; the module is faster, but nobody needs it."""
    found = asyncio.run(_ask_each(addresses, look))
    yield from module_findings(
        {
            place: each if isinstance(each, Verdict) else Verdict(Use.UNKNOWN, str(each))
            for place, each in found.items()
        }
    )


def check_version(info: Mapping[str, Any]) -> Finding:
    """Check the version in the reply to INFO. Versions that begin with no number pass."""
    kind = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version", info["redis_version"]))
    numbers = server_facts.version_numbers(version)
    fit = numbers is None or numbers >= OLDEST_VERSION[:2]
    text = f"{kind} {version}" + ("" if fit else f"; {version_text(OLDEST_VERSION)} or newer is needed")
    return Finding("version", OK if fit else FAULT, text)


def check_entries(holders: "Mapping[bytes, redis.Redis]") -> Iterator[Finding]:
    """Check for entries that Kafka clients can't read: entries without an offset, because native writers
    added more than 1,024 in one millisecond, or with an ID of the far future; and damaged record batches.
    """
    streams = sorted(holders)
    lengths = {stream: int(client.xlen(stream)) for stream, client in holders.items()}
    found = records = 0
    # Progress goes to standard error, and only to people: a program may read the findings.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading entries", total=sum(lengths.values()))
        for stream in streams:
            looked = _Entries(_bias(holders[stream], stream))
            for page in _pages(holders[stream], stream):
                progress.advance(task, len(page))
                looked.see(page)
            records += looked.records
            for what, (count, first) in looked.faults.items():
                found += count
                text = f"{count} of {lengths[stream]} entries {what}, the first is {first.decode()}"
                yield Finding(stream.decode(errors="replace"), FAULT, text + looked.place(stream, first))
    if not found:
        entries = sum(lengths.values())
        what = f"{entries} of {records} records" if records > entries else str(entries)
        yield Finding("entries", OK, f"{what} in {len(streams)} streams, all with an offset")


class _Entries:
    """Counts unreadable entries of one stream."""

    def __init__(self, bias: int) -> None:
        self._bias = bias
        self.records = 0
        self.faults: dict[str, tuple[int, bytes]] = {}
        """Describes each kind of fault, with the number of entries and the ID of the first."""

    def see(self, page: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        """Examine the next entries."""
        for entry_id, fields in page:
            flat = [part for pair in fields.items() for part in pair]
            self.records += record_count(entry_id, flat, self._bias)
            try:
                if _is_beyond(entry_id):
                    self._note("are beyond the last offset, so no record can follow", entry_id)
                elif is_damaged(flat, offset_of(entry_id, self._bias)):
                    self._note("are damaged record batches (wrong CRC, length or place)", entry_id)
            except AddressError:
                self._note("have no offset", entry_id)

    def place(self, stream: bytes, entry_id: bytes) -> str:
        """Returns the topic, partition and offset of an entry as text; empty if it has no offset."""
        if _is_beyond(entry_id):
            return ""
        try:
            offset = offset_of(entry_id, self._bias)
        except AddressError:
            return ""
        _, topic, partition = stream.decode(errors="replace").rsplit(":", 2)
        return f": topic {topic}, partition {partition}, offset {offset}"

    def _note(self, what: str, entry_id: bytes) -> None:
        count, first = self.faults.get(what, (0, entry_id))
        self.faults[what] = count + 1, first


def _is_beyond(entry_id: bytes) -> bool:
    """Whether an entry is beyond the last offset of a log."""
    return id_parts(entry_id)[0] > _LAST_MS


def _bias(client: "redis.Redis", stream: bytes) -> int:
    """The difference between entry ID and offset: 1 on topics with dense offsets, else 0."""
    noted: Any = client.hget(b"{%b}:meta" % stream, "bias")
    return int(noted or 0)


def check_types(
    servers: "Sequence[redis.Redis]", keyspace: str, streams: Collection[bytes]
) -> Iterator[Finding]:
    """Check for keys of other types in place of streams: Kafka clients get KAFKA_STORAGE_ERROR there."""
    keys = keys_of(keyspace)
    shared = dict(scan(servers, shared_pattern(keyspace), "hash"))
    topics: Any = shared[keys.topics].hkeys(keys.topics) if keys.topics in shared else ()
    names = frozenset(topics)
    for key, client in scan(servers, _partitions(keyspace)):
        if keys.is_stream(key) and key not in streams and key.split(b":")[-2] in names:
            kind: Any = client.type(key)
            if kind not in (b"stream", b"none"):
                text = f"is a {kind.decode()}, not a stream: no record can be written; rename the key"
                yield Finding(key.decode(), FAULT, text)


def check_transactions(streams: "Mapping[bytes, redis.Redis]", now_ms: int) -> Iterator[Finding]:
    """Check for open transactions that have been idle for longer than a transaction may take."""
    yield from transaction_findings(_open_transactions(streams), now_ms)


def _open_transactions(streams: "Mapping[bytes, redis.Redis]") -> Iterator[TransactionNote]:
    for stream, client in sorted(streams.items(), key=lambda item: item[0]):
        meta, name = b"{%b}:meta" % stream, stream.decode(errors="replace")
        packed: Any = client.hget(meta, "open")
        try:
            for producer, first_offset in parse_open(packed).items():
                noted: Any = client.hget(meta, f"p:{producer}")
                # Without it, the transaction has ended during the check.
                if noted is not None:
                    seen_ms = parse_producer(b"p:%d" % producer, noted, None, first_offset).seen_ms
                    yield OpenTransaction(name, producer, first_offset, seen_ms)
        except ValueError as error:
            yield UnreadableTransactions(name, str(error))


def streams_of(servers: "Sequence[redis.Redis]", keyspace: str) -> "dict[bytes, redis.Redis]":
    """Returns the streams of a keyspace's partitions, with the client that reaches each."""
    keys, found = keys_of(keyspace), scan(servers, _partitions(keyspace), "stream")
    return {stream: client for stream, client in found if keys.is_stream(stream)}


def _pages(client: "redis.Redis", stream: bytes) -> Iterator[list[tuple[bytes, Mapping[bytes, bytes]]]]:
    """Yields the entries of a stream in order, in pages of a few MB."""
    start, count = b"-", _FIRST_PAGE
    while True:
        reply: Any = client.xrange(stream, min=start, count=count)
        page: list[tuple[bytes, Mapping[bytes, bytes]]] = reply
        if not page:
            return
        yield page
        start = b"(" + page[-1][0]
        size = sum(len(part) for _, fields in page for part in fields.values())
        count = max(1, min(_PAGE, _PAGE_BYTES * len(page) // (size + 1)))

"""`korvet transactions`: does what kafka-transactions does.

A transaction hangs if a partition waits for its end, and no coordinator will ever end it there.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import click
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_producers.v0.response import DescribeProducersResponse
from kio.schema.describe_transactions.v0 import response as describe_response
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.list_transactions.v0.response import ListTransactionsResponse, TransactionState
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v1.request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
from kio.static.primitive import i16, i32, i64

from korvet.cli.client import Bootstrap, ClientError, Cluster, CoordinatorKind, check
from korvet.cli.options import Duration, bootstrap_option, json_option
from korvet.cli.output import print_json, table
from korvet.config.address import Address
from korvet.spark.report.times import duration, iso

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedState(describe_response.TransactionState):
    """kio's structure with the start time in ms: kio refuses the -1 of an ID without a transaction."""

    transaction_start_time: i64 = field(metadata={"kafka_type": "int64"})  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse(describe_response.DescribeTransactionsResponse):
    """kio's response with these structures."""

    transaction_states: tuple[DescribedState, ...]


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition, as the partition's leader knows it. Times are in ms."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


_idle_option = click.option(
    "--idle",
    "idle_ms",
    type=Duration(),
    default="15m",
    show_default=True,
    help="Ignore transactions with newer records. Choose at least transaction.max.timeout.ms.",
)


@click.group()
def transactions() -> None:
    """List and describe transactions, and end hanging ones."""


@transactions.command("list")
@bootstrap_option
@json_option
def list_transactions(bootstrap: Bootstrap, as_json: bool) -> None:
    """List the transactional IDs of all coordinators, with their state."""
    with Cluster(bootstrap) as cluster:
        rows = [
            (str(each.transactional_id), str(broker), int(each.producer_id), each.transaction_state)
            for broker, each in _listed(cluster)
        ]
    names = ("transactional_id", "coordinator", "producer_id", "state")
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in sorted(rows)])
    else:
        table([name.upper().replace("_", " ") for name in names], sorted(rows))


@transactions.command("describe")
@click.argument("transactional_id")
@bootstrap_option
@json_option
def describe_transaction(transactional_id: str, bootstrap: Bootstrap, as_json: bool) -> None:
    """Show a transactional ID's state, and the partitions of its transaction."""
    with Cluster(bootstrap) as cluster:
        found = _described(cluster, transactional_id)
    start_ms = int(found.transaction_start_time)
    document = {
        "transactional_id": transactional_id,
        "state": found.transaction_state,
        "producer_id": int(found.producer_id),
        "producer_epoch": int(found.producer_epoch),
        "timeout_ms": found.transaction_timeout // _MILLISECOND,
        "start_ms": None if start_ms < 0 else start_ms,
        "partitions": _partitions(found),
    }
    if as_json:
        print_json(document)
        return
    shown = document | {
        "timeout_ms": duration(found.transaction_timeout // _MILLISECOND),
        "start_ms": "-" if start_ms < 0 else iso(start_ms),
        "partitions": ", ".join(_partitions(found)) or "-",
    }
    for name, value in shown.items():
        click.echo(f"{name.removesuffix('_ms').replace('_', ' ')}: {value}")


@transactions.command("find-hanging")
@click.option("-t", "--topic", "topics", multiple=True, help="A topic, repeatable [all].")
@_idle_option
@bootstrap_option
@json_option
def find_hanging(topics: tuple[str, ...], idle_ms: int, bootstrap: Bootstrap, as_json: bool) -> None:
    """Find transactions that are open in a partition, and that no coordinator will end."""
    newest_ms = time.time_ns() // 1_000_000 - idle_ms
    with Cluster(bootstrap) as cluster:
        idle = [each for each in _open(cluster, topics) if each.last_timestamp <= newest_ms]
        hanging = [each for each in idle if _owner(cluster, each) is None]
    if as_json:
        print_json([each._asdict() for each in hanging])
        return
    columns = ("TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "START OFFSET", "LAST RECORD")
    table(columns, [(*each[:4], each.start_offset, iso(each.last_timestamp)) for each in hanging])


@transactions.command("abort")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.option("--producer-id", type=click.IntRange(min=0), required=True, help="As find-hanging shows it.")
@_idle_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@bootstrap_option
def abort_transaction(
    topic: str, partition: int, producer_id: int, idle_ms: int, yes: bool, bootstrap: Bootstrap
) -> None:
    """Abort a hanging transaction in a partition, for good.

    A transaction that its coordinator will still end is refused: aborting it here would tear it apart. A
    coordinator names only the transactional IDs that you may describe.
    """
    with Cluster(bootstrap) as cluster:
        hanging = _hanging(cluster, topic, partition, producer_id, idle_ms)
        if not yes:
            click.confirm(
                f"Abort the transaction of producer {producer_id} in {topic} partition {partition}, "
                f"from offset {hanging.start_offset} on?",
                abort=True,
            )
            # The producer may have begun another one in the meantime.
            if _hanging(cluster, topic, partition, producer_id, idle_ms) != hanging:
                raise ClientError(f"{topic} partition {partition}: the transaction has changed; try again")
        _abort(cluster, hanging)
    click.echo(f"aborted the transaction of producer {producer_id} in {topic} partition {partition}")


def _hanging(cluster: Cluster, topic: str, partition: int, producer_id: int, idle_ms: int) -> OpenTransaction:
    """Returns the open transaction of a producer. Raises ClientError if there is none, or it doesn't hang."""
    place = f"{topic} partition {partition}"
    found = [each for each in _open(cluster, [topic], partition) if each.producer_id == producer_id]
    if not found:
        raise ClientError(f"{place} has no open transaction of producer {producer_id}")
    owner = _owner(cluster, found[0])
    if owner is not None:
        raise ClientError(
            f"{place}: the transaction of producer {producer_id} does not hang: the coordinator of {owner} "
            "will end it when the producer does, or after its timeout"
        )
    if found[0].last_timestamp > time.time_ns() // 1_000_000 - idle_ms:
        raise ClientError(f"{place}: the transaction of producer {producer_id} has newer records than --idle")
    return found[0]


def _listed(cluster: Cluster) -> Iterator[tuple[Address, TransactionState]]:
    """Yields the transactional IDs of each coordinator."""
    for broker in cluster.brokers():
        answer = cluster.ask(ListTransactionsRequest(), ListTransactionsResponse, broker)
        check(answer.error_code, f"transactions of {broker}")
        for each in answer.transaction_states:
            yield broker, each


def _described(cluster: Cluster, transactional_id: str) -> DescribedState:
    request = DescribeTransactionsRequest(transactional_ids=(TransactionalId(transactional_id),))
    broker = cluster.coordinator(transactional_id, CoordinatorKind.TRANSACTIONAL_ID)
    (found,) = cluster.ask(request, DescribeTransactionsResponse, broker).transaction_states
    check(found.error_code, f"transactional ID {transactional_id}")
    return found


def _partitions(found: DescribedState) -> list[str]:
    return [f"{topic.topic}-{index}" for topic in found.topics for index in topic.partitions]


def _open(cluster: Cluster, topics: Iterable[str], partition: int | None = None) -> Iterator[OpenTransaction]:
    """Yields the open transactions of the topics, by default of all."""
    names = list(topics) or sorted(str(topic.name) for topic in cluster.metadata().topics)
    for name in names:
        indexes = [int(each.partition_index) for each in cluster.topic(name).partitions]
        for broker, led in cluster.leaders(name, indexes if partition is None else [partition]).items():
            asked = TopicRequest(name=TopicName(name), partition_indexes=tuple(map(i32, led)))
            answer = cluster.ask(DescribeProducersRequest(topics=(asked,)), DescribeProducersResponse, broker)
            for topic in answer.topics:
                for part in topic.partitions:
                    index = int(part.partition_index)
                    check(part.error_code, f"{name} partition {index}", part.error_message)
                    for each in part.active_producers:
                        if each.current_txn_start_offset >= 0:
                            yield OpenTransaction(
                                name,
                                index,
                                int(each.producer_id),
                                int(each.producer_epoch),
                                max(0, int(each.coordinator_epoch)),
                                int(each.current_txn_start_offset),
                                int(each.last_timestamp),
                            )


def _owner(cluster: Cluster, found: OpenTransaction) -> str | None:
    """Returns the transactional ID whose coordinator will end a transaction in its partition; None if it
    hangs.
    """
    for _, listed in _listed(cluster):
        if listed.producer_id == found.producer_id:
            described = _described(cluster, listed.transactional_id)
            if f"{found.topic}-{found.partition}" in _partitions(described):
                return str(listed.transactional_id)
    return None


def _abort(cluster: Cluster, hanging: OpenTransaction) -> None:
    """Let the partition's leader write the marker that ends the transaction (WriteTxnMarkers)."""
    topic = WritableTxnMarkerTopic(name=TopicName(hanging.topic), partition_indexes=(i32(hanging.partition),))
    marker = WritableTxnMarker(
        producer_id=ProducerId(hanging.producer_id),
        producer_epoch=i16(hanging.producer_epoch),
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=i32(hanging.coordinator_epoch),
    )
    (leader,) = cluster.leaders(hanging.topic, [hanging.partition])
    answer = cluster.ask(WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse, leader)
    for result in answer.markers:
        for written in result.topics:
            for part in written.partitions:
                check(part.error_code, f"{hanging.topic} partition {hanging.partition}")

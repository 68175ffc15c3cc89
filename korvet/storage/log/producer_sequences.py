"""Sequences of idempotent producers (KIP-98) as the append functions receive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.offsets.record_batch import (
    MAX_PRODUCER_SEQUENCE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from korvet.storage.log.values import ProducerSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

# Batches per producer that Redis remembers to recognise duplicates.
REMEMBERED_BATCHES: Final = 5
_NO_PRODUCER: Final = ProducerSequence(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)


def pack_sequences(producers: Sequence[ProducerSequence | None], record_counts: Sequence[int]) -> bytes:
    """The producers of batches that are appended together, in their order; None for a batch without an
    idempotent producer. Empty if no batch has one. Consecutive batches of one producer share an item.
    """
    if not any(producers):
        return b""
    packed = b""
    first = last = _NO_PRODUCER
    counts: list[int] = []
    for each, record_count in zip(producers, record_counts, strict=True):
        producer = each or _NO_PRODUCER
        if counts and not _continues(producer, last, counts[-1]):
            packed += _pack_item(first, counts)
            counts = []
        if not counts:
            first = producer
        counts.append(record_count)
        last = producer
    return packed + _pack_item(first, counts)


def _continues(producer: ProducerSequence, last: ProducerSequence, record_count: int) -> bool:
    """Whether a batch continues the sequence of the batch before it, which has `record_count` records."""
    if producer.producer_id == -1 or last.base_sequence == -1:
        return producer.producer_id == last.producer_id == -1
    return (
        producer.base_sequence == (last.base_sequence + record_count) & MAX_PRODUCER_SEQUENCE
        and producer.producer_id == last.producer_id
        and producer.producer_epoch == last.producer_epoch
        and producer.transactional == last.transactional
    )


def _pack_item(first: ProducerSequence, counts: list[int]) -> bytes:
    """Batches of one producer: `first`, and the number of records in each. PRODUCERS_PATTERN in
    lua/_producers.lua reads it.
    """
    newest = b""
    if len(counts) > 1:
        newest = b" " + b",".join([b"%d" % count for count in counts[-REMEMBERED_BATCHES:]])
    return b"%d %d %d %d%b%b;" % (
        first.producer_id,
        first.producer_epoch,
        first.base_sequence,
        sum(counts),
        b"t" if first.transactional else b"",
        newest,
    )

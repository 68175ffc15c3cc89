"""Transactions that lost a batch by a cut, and the time of the cut."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
import redis

from korvet.log.values import ProducerSequence
from korvet.redis.functions import named
from tests.support.append_calls import call_append, verdicts

if TYPE_CHECKING:
    from tests.storage.conftest import Bench

pytestmark = pytest.mark.each_server

AHEAD_MS = 60_000


def put(bench: Bench, keys: list[bytes], first: int) -> None:
    stamp = ProducerSequence(7, 0, first, transactional=True)
    (verdict,) = verdicts(call_append(bench.client, keys, (stamp, [("value", first)])))
    if isinstance(verdict, str):
        raise redis.ResponseError(verdict)


def claim(bench: Bench, keys: list[bytes], lowest: int, history: str) -> None:
    bench.client.fcall(named("korvet_claim"), 2, keys[2], keys[0], lowest, lowest + 9, "id", 0, 1, history)


def test_a_transaction_that_lost_a_batch_while_the_former_primary_had_a_fast_clock(bench: Bench) -> None:
    keys = list(bench.log(offset_assignment="dense").state.keys[:3])
    claim(bench, keys, 10, "a")
    put(bench, keys, 0)
    # The former primary had a clock a minute ahead. It acknowledged sequence 1, too, which is lost.
    meta = keys[2]
    stored = bench.client.hget(meta, "p:7")
    epoch, touched = struct.unpack_from(">dd", stored)
    bench.client.hset(meta, "p:7", struct.pack(">dd", epoch, touched + AHEAD_MS) + stored[16:])
    log = bench.client.hget(meta, "log")
    (appended,) = struct.unpack_from(">d", log, 8)
    bench.client.hset(meta, "log", log[:8] + struct.pack(">d", appended + AHEAD_MS) + log[16:])
    claim(bench, keys, 20, "b")
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="UNKNOWNPRODUCER"):
            put(bench, keys, 2)


def test_a_transaction_that_lost_a_batch_by_a_cut_that_an_older_broker_noted(bench: Bench) -> None:
    keys = list(bench.log(offset_assignment="dense").state.keys[:3])
    claim(bench, keys, 10, "a")
    claim(bench, keys, 20, "b")
    cut_ms, log_end = bench.client.hget(keys[2], "cut").split(b":")
    bench.client.hset(keys[2], "cut", b"%d:%b" % (int(cut_ms) - 1000, log_end))
    put(bench, keys, 0)
    # Sequence 1 is lost. An older broker notes that cut, without its time.
    leaders = bench.client.hget(keys[2], "leaders").decode()
    bench.client.hset(keys[2], "leaders", f"{leaders} 30:1")
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="UNKNOWNPRODUCER"):
            put(bench, keys, 2)

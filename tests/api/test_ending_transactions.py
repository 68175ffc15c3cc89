"""Pipelined batches of a new transaction while markers of the last one are late (protocol 2)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from korvet.coordinator.markers import LocalMarkers
from tests.api.asking import KEYS, connect, frame
from tests.api.batches import batch
from tests.api.test_produce import everything, request_of
from tests.api.test_transactions import SECOND_PROTOCOL, Producer
from tests.support.wire import decode_response

if TYPE_CHECKING:
    from types import SimpleNamespace

    import pytest

CONCURRENT = 51


def test_no_batch_overtakes_one_that_came_while_the_last_transaction_ended(
    in_process: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    may_write.set()
    write = LocalMarkers.write

    async def late(self: LocalMarkers, *arguments: Any) -> Any:
        while not may_write.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return await write(self, *arguments)

    monkeypatch.setattr(LocalMarkers, "write", late)
    ask = connect(in_process)
    topics = [{"name": "t", "num_partitions": 2, "replication_factor": 1}]
    ask("CreateTopics", 7, topics=topics, timeout=10_000, validate_only=False)
    with ask.raw:
        producer = Producer(ask, "t", SECOND_PROTOCOL)
        producer.init()
        assert producer.put(b"old", partition=0).error_code == 0
        may_write.clear()
        assert producer.end() == 0

        def send(sequence: int) -> None:
            data = batch([(b"k", b"%d" % sequence)], attributes=0x10, producer=(*producer.identity, sequence))
            fields = request_of([("t", 1, data)], transactional_id=producer.name)
            ask.raw.send(frame("Produce", 12, sequence, **fields))

        def error() -> int:
            answer = decode_response(KEYS["Produce"], 12, ask.raw.receive())
            return int(answer.message.responses[0].partition_responses[0].error_code)

        send(0)
        time.sleep(0.07)
        send(1)
        first = error()
        may_write.set()
        second = error()
        assert first == CONCURRENT
        assert second != 0, "it has overtaken the first batch"
        errors = []
        for sequence in (0, 1):
            send(sequence)
            errors.append(error())
        assert errors == [0, 0]
        assert producer.end() == 0
        assert [value for _, _, value in everything(ask, "t", 1)][:2] == [b"0", b"1"]

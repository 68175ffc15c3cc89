"""Transactional producers from before the data were restored from a backup."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.transactions.driver import Driver
from tests.unit.transactions.test_transaction_shard import NONE, begun


@pytest.mark.parametrize("protocol", [0, 2])
def test_producers_from_before_a_restore_are_fenced(protocol: int) -> None:
    """Parts of the open transaction may be lost, and clients may have later epochs of the id."""
    driver, producer_id, epoch = begun(protocol)
    restored = Driver(log=driver.log, now_ms=driver.now_ms, first_producer_id=producer_id + 1)
    restored.take_producer_id = lambda: 555
    for named in (epoch, epoch + 3):
        assert restored.add(producer_id, named).error is ErrorCode.producer_fenced
        assert restored.add(producer_id, named, verify_only=True).error is ErrorCode.producer_fenced
        assert restored.end(producer_id, named, protocol=protocol).error is ErrorCode.producer_fenced
        assert restored.init(producer_id=producer_id, epoch=named).error is ErrorCode.producer_fenced
    assert restored.init().error is ErrorCode.concurrent_transactions
    (markers,) = restored.write_markers()
    assert (markers.producer_id, markers.committed) == (producer_id, False)
    reply = restored.init()
    assert (reply.error, reply.producer_id, reply.producer_epoch) == (NONE, 555, 0)
    assert restored.init(producer_id=producer_id, epoch=epoch).error is ErrorCode.producer_fenced
    assert restored.add(555, 0).error is NONE
    assert restored.end(555, 0).error is NONE


def test_producers_from_after_a_restore_go_on() -> None:
    driver, producer_id, epoch = begun()
    later = Driver(log=driver.log, now_ms=driver.now_ms, first_producer_id=producer_id)
    assert later.end(producer_id, epoch).error is NONE
    later.write_markers()
    reply = later.init(producer_id=producer_id, epoch=epoch)
    assert (reply.error, reply.producer_id, reply.producer_epoch) == (NONE, producer_id, epoch + 1)

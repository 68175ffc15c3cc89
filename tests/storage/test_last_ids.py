"""Last IDs that Redis clients set (XSETID)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.observe.ordinals import Known, LogOrdinals
from korvet.offsets.packing import entry_id
from tests.api.batches import batch
from tests.storage.test_batch_layout import append, pairs

if TYPE_CHECKING:
    from tests.storage.conftest import Bench

pytestmark = pytest.mark.each_server


@pytest.mark.parametrize("layout", ["record", "batch"])
def test_the_lag_after_a_last_id_was_set_ahead_and_back(bench: Bench, layout: str) -> None:
    """The index is made again, so ordinals that were known before count for nothing."""
    log = bench.log(storage_layout=layout)
    second = [bench.run(append(log, batch(pairs(*[b"v"] * 10)))) for _ in range(5)][1].base_offset
    ordinals = LogOrdinals(bench.store.commands, log.topic, 0)
    ends, (before,) = bench.run(ordinals.positions([(second, None)], 0))
    ((last_id, _),) = bench.client.xrevrange(log.stream, count=1)
    bench.client.execute_command("XSETID", log.stream, entry_id(log.ends.log_end + 5))
    assert bench.run(log.queries.count(second, log.ends.log_end)) == 40
    bench.client.execute_command("XSETID", log.stream, last_id)
    assert bench.run(log.queries.count(second, log.ends.log_end)) == 40
    bench.run(append(log, batch(pairs(b"x"))))
    known = Known(second, before.ordinal)
    ends, (after,) = bench.run(ordinals.positions([(second, known)], ends.edition))
    assert ends.end_ordinal - after.ordinal == bench.run(log.queries.count(second, log.ends.log_end)) == 41

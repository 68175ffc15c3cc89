"""Topics that ask for more copies than the server can give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.storage.conftest import Bench


@pytest.mark.parametrize("config", [("min.insync.replicas", "2"), ("acks.all.fsync", "true")])
def test_a_topic_whose_level_cannot_be_reached_can_be_deleted(bench: Bench, config: tuple[str, str]) -> None:
    bench.topic("t", configs=dict([config]))
    bench.run(bench.store.catalogue.delete("t"))
    bench.topic("t")

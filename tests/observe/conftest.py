"""The cluster that all tests here share; each uses its own topics and groups."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.deploy.observed import RULES
from tests.observe.cluster import ObservedCluster
from tests.support.servers import KAFKA_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedCluster]:
    """Two brokers that a real Prometheus scrapes and whose alerts it evaluates."""
    if os.environ.get(KAFKA_VARIABLE):
        pytest.skip("needs korvet: reads its metrics")
    made = ObservedCluster(tmp_path_factory.mktemp("observed"), RULES)
    yield made
    made.discard()

"""What several tests of faults put between two parties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.proxy import CuttingProxy

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def proxy() -> Iterator[CuttingProxy]:
    """A proxy that leads nowhere yet: set its target_port."""
    made = CuttingProxy()
    yield made
    made.close()

"""What every test of connections leaves behind: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.server.transports import MADE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def clients_go() -> Iterator[None]:
    """All clients of the test have gone when it is over."""
    yield
    for wire in MADE:
        wire.lose()
    MADE.clear()

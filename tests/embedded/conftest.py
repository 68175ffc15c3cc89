"""Fixtures of the embedded server's tests."""

from pathlib import Path

import pytest

from korvet.redis.module import find_module
from tests.support.module import UNBUILT, choice, module_built


@pytest.fixture
def module() -> Path:
    """The compiled module. Skips the test if it isn't built, or this run is one without it."""
    built = find_module()
    if not module_built() or built is None:
        pytest.skip(UNBUILT)
    if choice() == "none":
        pytest.skip("this run is one without the module")
    return built

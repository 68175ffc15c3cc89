"""The metric families that a broker, and the main process of several brokers, declare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import korvet.admin.merged
import korvet.broker  # noqa: F401 - the modules that it loads declare families
from korvet.metrics.declared import declared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.metrics.family import Family


def all_families() -> Mapping[str, Family]:
    """Returns all families by name."""
    return declared()

"""All declared metric families. Each is declared beside the code that counts or reads its numbers."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from korvet.metrics.family import Family, MetricType

if TYPE_CHECKING:
    from collections.abc import Mapping

_DECLARED: Final[dict[str, Family]] = {}


def declare(
    name: str, help_text: str, *labels: str, kind: MetricType = MetricType.GAUGE, by_one_broker: bool = False
) -> Family:
    """Declare a family; see Family. Raises ValueError if there is one of this name."""
    if name in _DECLARED:
        raise ValueError(f"the family {name} is declared twice")
    family = _DECLARED[name] = Family(name, kind, help_text, labels, by_one_broker, _caller())
    return family


def _caller() -> str:
    """The module that declares: the nearest caller outside this package."""
    package = __name__.rpartition(".")[0]
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(package):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def declared() -> Mapping[str, Family]:
    """Returns the families of all modules that are loaded, by name."""
    return MappingProxyType(_DECLARED)

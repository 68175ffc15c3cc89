"""The kernel of the data source in its two forms."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from korvet.records import shadow
from korvet.spark.records import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(compiled.__file__).with_name("kernel")
USERS = ("korvet.spark.records.page.kernel", "korvet.spark.records.batches.kernel")


def _uncompiled() -> Any:
    """The kernel's sources as modules, beside the compiled form. A read after the end is an IndexError."""
    name = "korvet.spark.records.kernel"
    spec = importlib.util.spec_from_file_location(
        name, SOURCES / "__init__.py", submodule_search_locations=[str(SOURCES)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"cython": shadow, name: module}):
        spec.loader.exec_module(module)
    return module


INSTALLED: Any = compiled.kernel
UNCOMPILED = _uncompiled()
FORMS = [pytest.param(INSTALLED, id="installed"), pytest.param(UNCOMPILED, id="uncompiled")]
"""The installed kernel is None without a compiler."""


@contextmanager
def using(form: Any) -> Iterator[None]:
    """Use this kernel in the data source; None uses no kernel."""
    with ExitStack() as stack:
        for user in USERS:
            stack.enter_context(mock.patch(user, form))
        yield

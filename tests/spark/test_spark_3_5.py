"""The refusals of Spark 3.5: it has no data sources in Python, so only the expressions work.

Runs without the conftest.py files: `python -m tools.spark_versions 3.5`.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from korvet.spark.versions import UnsupportedSpark, features

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.skipif(features().data_sources, reason="this Spark has data sources in Python")
def test_only_expressions_work(record_property: Callable[[str, object], None]) -> None:
    importlib.import_module("korvet.spark.expressions")
    for name in ("source", "tables", "session", "export", "report.report"):
        with pytest.raises(
            UnsupportedSpark, match=r"Spark 3\.5\.\d+ has no data sources in Python; it works with"
        ):
            importlib.import_module(f"korvet.spark.{name}")
    done = subprocess.run(
        [sys.executable, "-m", "korvet", "report"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    refused = done.stderr.strip()
    assert refused.startswith("Error: Spark 3.5.")
    record_property("refused", refused.removeprefix("Error: "))

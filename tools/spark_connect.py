"""Runs tests of Spark once more, in a session of a Spark Connect server.

./dev run python -m tools.spark_connect
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1] / "tests" / "spark"
# Files of tests/spark.
THROUGH_CONNECT: Final = ("all_tables", "export", "report", "source", "stored_tables", "views")


def main() -> int:
    """Return pytest's exit status."""
    files = [str(TESTS / f"test_{name}.py") for name in THROUGH_CONNECT]
    environ = {**os.environ, "KORVET_TEST_CONNECT": "1"}
    command = [sys.executable, "-m", "pytest", *files]
    return subprocess.run(command, cwd=TESTS.parents[1], env=environ, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())

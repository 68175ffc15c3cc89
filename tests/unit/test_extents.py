"""Which tests the short, the full and the longest run have, by options and arguments."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT = ("-p", "no:hypothesispytest")
CONFTEST = """
import pytest
from tests.support import extents

extents.server_programs = lambda: ("valkey", "redis")

def pytest_addoption(parser):
    parser.addoption("--full", action="store_true")
    parser.addoption("--all", action="store_true")

def pytest_configure(config):
    extents.settle_extent(config)
    for name in ("short", "long", "each_server"):
        config.addinivalue_line("markers", name)

def pytest_collection_modifyitems(config, items):
    extent = extents.extent_of_run(config)
    items[:] = [
        item for item in items
        if extents.least_extent(item) <= extent or extents.is_named(item, config.args)
    ]

@pytest.fixture(params=["valkey", "redis"])
def server(request):
    return request.param
"""
HEAD = "import pytest\nmark = pytest.mark\n"
QUICK = """
def test_plain(): pass
def test_once(server): pass
@mark.each_server
def test_each(server): pass
@mark.long
def test_long(): pass
"""
SLOW = """
def test_other(): pass
@mark.short
def test_short(): pass
@mark.short
@mark.long
@mark.parametrize("size", [1])
def test_both(size): pass
"""
SHORT = {"test_top", "test_plain", "test_once[valkey]", "test_each[valkey]", "test_short"}
FULL = SHORT | {"test_each[redis]", "test_other"}
ALL = FULL | {"test_once[redis]", "test_long", "test_both[1]"}
OF_UNIT = {"test_plain", "test_once[valkey]", "test_each[valkey]", "test_each[redis]"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three files of tests, in no folder, in a quick one and in a slow one."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --strict-markers\n")
    (root / "conftest.py").write_text(CONFTEST)
    for path, text in (("test_top", "def test_top(): pass"), ("unit/test_a", QUICK), ("faults/test_b", SLOW)):
        file = root / "tests" / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HEAD + text)
    return root


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", SHORT),
        ("-n 2", SHORT),
        ("--maxfail=1 -n 1 --full", FULL),
        ("--all", ALL),
        ("--all --full", ALL),
        ("tests/faults", {"test_other", "test_short"}),
        ("-n 2 tests/faults", {"test_other", "test_short"}),
        ("--all tests/faults", {"test_other", "test_short", "test_both[1]"}),
        ("tests/unit/test_a.py", OF_UNIT),
        ("-k other", {"test_other"}),
        ("-m long", {"test_long", "test_both[1]"}),
        ("-m short", {"test_short"}),
        ("-m 'not long'", FULL),
        ("--lf", FULL),
        ("tests/faults/test_b.py::test_both", {"test_both[1]"}),
        ("tests/unit/test_a.py::test_once[redis]", {"test_once[redis]"}),
        ("tests/unit tests/unit/test_a.py::test_long", {*OF_UNIT, "test_long"}),
    ],
)
def test_a_run_has_the_tests_of_its_extent(checkout: Path, arguments: str, expected: set[str]) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "-v", *WITHOUT, *shlex.split(arguments)]
    done = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [
        line.split()[0 if "::" in line.split()[0] else -1]
        for line in done.stdout.splitlines()
        if "PASSED" in line
    ]
    assert {test.partition("::")[2] for test in ran} == expected

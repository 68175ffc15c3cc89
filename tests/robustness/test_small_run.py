"""The small run: it has no violation, and finds every planted defect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.robustness.campaign import check_file
from tests.robustness.clients import Recorder
from tests.robustness.defects import DEFECTS
from tests.robustness.history import Writer
from tests.robustness.small_run import SERVER_OPTIONS, STAGES, SmallRun
from tests.support.proxy import CuttingProxy
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path


def found_by(folder: Path, program: Sequence[str], stages: Collection[str]) -> tuple[str, set[str]]:
    """Make a small run with a program. Returns its report and the kinds of violations."""
    proxy = CuttingProxy()
    options = [part for option in SERVER_OPTIONS for part in ("--set", option)]
    server = KorvetServer(*options, advertise=proxy.address, program=program)
    proxy.target_port = server.port
    path = folder / "history.jsonl"
    try:
        server.start()
        with Writer(path) as writer:
            SmallRun(server, proxy, Recorder(writer)).run(stages)
    finally:
        proxy.close()
        server.discard()
    checked = check_file(path, folder)
    return checked.text, {violation.kind for violation in checked.violations if not violation.is_note}


def test_a_small_run_has_no_violation(tmp_path: Path) -> None:
    text, found = found_by(tmp_path, ("korvet",), STAGES)
    assert not found, text


@pytest.mark.long
@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str, tmp_path: Path) -> None:
    defect = DEFECTS[name]
    text, found = found_by(tmp_path, ("tests.robustness.defects", name), defect.stages)
    assert found & defect.kinds, text

"""Folders whose files come and go while they are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from korvet.spark.session.driver_calls import DriverError
from korvet.spark.session.folders import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VANISHED = DriverError([("java.lang.RuntimeException", "cannot access 'part-1': No such file or directory")])


@pytest.mark.parametrize("failures", [0, 1, 4])
def test_a_file_that_vanishes_while_the_folder_is_listed(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    answers: list[Any] = [VANISHED] * failures + ["file:/out\0file:/out/part-0\0file:/out/_log/1"]
    assert list(listed(monkeypatch, answers).files()) == ["file:/out/part-0"]
    assert answers == []


def test_a_folder_that_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = listed(monkeypatch, [VANISHED] * 100)
    with pytest.raises(DriverError, match="No such file"):
        list(folder.files())


def listed(monkeypatch: pytest.MonkeyPatch, answers: list[Any]) -> Folder:
    """A folder whose listings have these results in turn."""

    def run(*_: object) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(Folder, "exists", lambda _: True)
    monkeypatch.setattr(Folder, "_run", run)
    return Folder(cast("SparkSession", None), "/out")

"""Failures of Spark and Java in one line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from korvet.spark.session.failures import NEEDS_JAR, in_one_line

TRACEBACK = """\
[PYTHON_DATA_SOURCE_ERROR] Failed to initialize: Traceback (most recent call last):
  File "worker.py", line 1, in read
    raise SourceError("gone")
"""


class Thrown:
    """A Java exception."""

    def __init__(self, message: str | None, cause: Thrown | None = None) -> None:
        self._message, self._cause = message, cause

    def getMessage(self) -> str | None:  # noqa: N802 (Java's name)
        return self._message

    def getCause(self) -> Thrown | None:  # noqa: N802 (Java's name)
        return self._cause

    def getClass(self) -> SimpleNamespace:  # noqa: N802 (Java's name)
        return SimpleNamespace(getName=lambda: "java.lang.Thrown")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "Spark failed without a message"),
        (
            "[COLUMN_ALREADY_EXISTS] There is one. SQLSTATE: 42711\n== plan ==",
            "[COLUMN_ALREADY_EXISTS] There is one.",
        ),
        (
            TRACEBACK + "korvet.spark.source.errors.SourceError: no topic t; there is u\n\tat java",
            "no topic t; there is u",
        ),
        (TRACEBACK + "redis.exceptions.ResponseError: NOPERM\n", "ResponseError: NOPERM"),
        (
            TRACEBACK + "py4j.protocol.Py4JJavaError: An error occurred.\n: java.sql.SQLException: no\n",
            "SQLException: no",
        ),
        (
            "[STREAM_FAILED] Query [id = a] terminated with exception: disk is full SQLSTATE: XXKST",
            "disk is full",
        ),
        (
            "java.lang.ClassNotFoundException: Class a.B not found",
            f"ClassNotFoundException: Class a.B not found: {NEEDS_JAR}",
        ),
    ],
)
def test_of_spark(text: str, line: str) -> None:
    assert in_one_line(RuntimeError(text)) == line


@pytest.mark.parametrize(
    ("thrown", "line"),
    [
        (Thrown(None), "java.lang.Thrown"),
        (Thrown("Parent path is not a directory\nmore", Thrown("inner")), "Parent path is not a directory"),
        (Thrown("Job aborted due to stage failure", Thrown("mkdir of x failed")), "mkdir of x failed"),
        (
            Thrown(
                "Job aborted due to stage failure: Lost task 0.0 in stage 0.0 (TID 0) (h driver): "
                "java.io.IOException: full\nat"
            ),
            "IOException: full",
        ),
    ],
)
def test_of_java(thrown: Thrown, line: str) -> None:
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = thrown
    assert in_one_line(error) == line

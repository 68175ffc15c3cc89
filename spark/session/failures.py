"""Failures of Spark and Java as one line that helps the user."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from korvet.spark.session.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

# The last line of a traceback of korvet's exceptions. Their messages are written for users.
_OURS = re.compile(r"^korvet\.[\w.]+: (.+)$", re.MULTILINE)
# The last line of a traceback of any other exception. An exception of Java follows on the next line.
_RAISED = re.compile(r"^(?:\S*Py4JJavaError: .*\n: )?([A-Za-z_][\w.]*(?:Error|Exception)\b.*)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
# Spark's wrappers around the failure of a task or a query, without information of their own.
_FRAME = re.compile(
    r"Job aborted|Task failed|terminated with exception|\[TASK_WRITE_FAILED\]|\[STREAM_FAILED\]"
)
_LOST_TASK = re.compile(r"Lost task [^\n]*?\): ([^\n]+)")
_ENDED_BY = re.compile(r"terminated with exception: ([^\n]+)")
_SQLSTATE = re.compile(r" SQLSTATE: \w+\s*$")
_JAVA_NAME = re.compile(r"\b(?:[a-z][\w]*\.)+([A-Z]\w*(?:Exception|Error))\b")
_NO_CLASS = re.compile(r"Class \S+ not found|ClassNotFoundException|NoClassDefFoundError")
NEEDS_JAR = "add its jar by --jar FILE or --package GROUP:ARTIFACT:VERSION"


def in_one_line(error: Exception) -> str:
    """Return the cause of a failure, without plans, stack traces, passwords and Spark's wrappers."""
    failure = getattr(error, "java_exception", None)
    return _line_of([str(error)]) if failure is None else of_call(causes_of(failure))


def of_call(causes: Sequence[tuple[str, str]]) -> str:
    """Return the cause of a failed call into the driver, as in_one_line does. causes: as of causes_of."""
    return _line_of([message or name for name, message in causes])


def causes_of(failure: Any) -> list[tuple[str, str]]:
    """Return the class names and messages of a Java exception and its causes, outermost first."""
    causes = []
    while failure is not None:
        causes.append((str(failure.getClass().getName()), str(failure.getMessage() or "")))
        failure = failure.getCause()
    return causes


def _line_of(texts: list[str]) -> str:
    """The line of the messages of an exception and its causes, outermost first."""
    words = _of_python("\n".join(texts)) or next((text for text in texts if not _FRAME.search(text)), None)
    if words is None:
        inner = _LOST_TASK.search(texts[-1]) or _ENDED_BY.search(texts[-1])
        words = inner[1] if inner else texts[0]
    line = next(
        (line.strip() for line in words.splitlines() if line.strip()), "Spark failed without a message"
    )
    line = redacted(_JAVA_NAME.sub(r"\1", _SQLSTATE.sub("", line)))
    return f"{line}: {NEEDS_JAR}" if _NO_CLASS.search(line) else line


def root_kind(failure: Any) -> str:
    """Return the class of the root cause of a Java exception, without its package."""
    while (cause := failure.getCause()) is not None:
        failure = cause
    return str(failure.getClass().getSimpleName())


def _of_python(text: str) -> str | None:
    """The message of the Python exception whose traceback is in a text; the innermost one of several."""
    _, found, traceback = text.rpartition(_TRACEBACK)
    if not found:
        return None
    ours, raised = _OURS.search(traceback), _RAISED.search(traceback)
    return ours[1] if ours else raised[1] if raised else None

"""Failures of Spark and Java in one line, as a user can do something with them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from korvet.spark.session.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator

# What an exception of ours ends a traceback with: its message is made for users.
_OURS = re.compile(r"^korvet\.[\w.]+: (.+)$", re.MULTILINE)
# What any other one ends a traceback with; one of Java's follows on a line of its own.
_RAISED = re.compile(r"^(?:\S*Py4JJavaError: .*\n: )?([A-Za-z_][\w.]*(?:Error|Exception)\b.*)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last)"
# Spark's frame around what went wrong in a task or in a query, which says nothing itself.
_FRAME = re.compile(
    r"Job aborted|Task failed|terminated with exception|\[TASK_WRITE_FAILED\]|\[STREAM_FAILED\]"
)
_LOST_TASK = re.compile(r"Lost task [^\n]*?\): ([^\n]+)")
_ENDED_BY = re.compile(r"terminated with exception: ([^\n]+)")
_SQLSTATE = re.compile(r" SQLSTATE: \w+\s*$")
_JAVA_NAME = re.compile(r"\b(?:[a-z][\w]*\.)+([A-Z]\w*(?:Exception|Error))\b")
_NO_CLASS = re.compile(r"Class \S+ not found|ClassNotFoundException|NoClassDefFoundError")
NEEDS_JAR = "give its jar by --jar FILE or --package GROUP:ARTIFACT:VERSION"


def in_one_line(error: Exception) -> str:
    """What went wrong, without plans, stacks, passwords and Spark's own frame around it."""
    failure = getattr(error, "java_exception", None)
    texts = [str(error)] if failure is None else list(_messages(failure))
    words = _of_python("\n".join(texts)) or next((text for text in texts if not _FRAME.search(text)), None)
    if words is None:
        inner = _LOST_TASK.search(texts[-1]) or _ENDED_BY.search(texts[-1])
        words = inner[1] if inner else texts[0]
    line = next((line.strip() for line in words.splitlines() if line.strip()), "Spark failed without a word")
    line = redacted(_JAVA_NAME.sub(r"\1", _SQLSTATE.sub("", line)))
    return f"{line}: {NEEDS_JAR}" if _NO_CLASS.search(line) else line


def root_of(failure: Any) -> Any:
    """The Java exception that one was caused by in the end."""
    while (cause := failure.getCause()) is not None:
        failure = cause
    return failure


def _of_python(text: str) -> str | None:
    """What a Python exception says whose traceback is in a text; the innermost of several."""
    _, found, traceback = text.rpartition(_TRACEBACK)
    if not found:
        return None
    ours, raised = _OURS.search(traceback), _RAISED.search(traceback)
    return ours[1] if ours else raised[1] if raised else None


def _messages(failure: Any) -> Iterator[str]:
    """Of a Java exception and its causes, where they say something of their own."""
    while failure is not None:
        yield str(failure.getMessage() or failure.toString())
        failure = failure.getCause()

"""Calls in the JVM of Spark's driver: their results, what is called after a failure, and a missing jar."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from korvet.spark.session import driver_calls
from korvet.spark.session.driver_calls import DriverError, in_driver
from korvet.spark.session.jars import JarsMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from korvet.spark.session.driver_calls import Calls

SYSTEM = "java.lang.System"


class Notes:
    """What calls note in the driver."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark, self._prefix = spark, f"korvet.test.{uuid.uuid4().hex}"

    def note(self, calls: Calls, name: str) -> None:
        calls.static(SYSTEM, "setProperty", f"{self._prefix}.{name}", "noted")

    def noted(self, *names: str) -> list[str]:
        return [name for name in names if in_driver(self._spark, partial(self._property, name)) is not None]

    def _property(self, name: str, calls: Calls) -> Any:
        return calls.static(SYSTEM, "getProperty", f"{self._prefix}.{name}")


@pytest.mark.parametrize(
    "value", ["", " \u00fcber\nzwei\r Zeilen\\n ", "one\0two", 7, -(2**40), True, False, None], ids=repr
)
def test_results_are_those_of_java(spark: SparkSession, value: Any) -> None:
    def work(calls: Calls) -> Any:
        found = calls.new("java.util.ArrayList")
        found.add("another")
        found.add(value)
        return found.get(1)

    result = in_driver(spark, work)
    assert (type(result), result) == (type(value), value)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_called_after_a_failure(spark: SparkSession, fails: bool) -> None:
    notes = Notes(spark)

    def work(calls: Calls) -> Any:
        for name, when in (("closed", calls.at_the_end), ("undone", calls.on_failure)):
            when(partial(notes.note, calls, name))
        number = calls.static("java.lang.Integer", "parseInt", "seven" if fails else "7")
        notes.note(calls, "next")
        return number

    if fails:
        with pytest.raises(DriverError, match="seven") as caught:
            in_driver(spark, work)
        assert caught.value.classes == {"java.lang.NumberFormatException"}
    else:
        assert in_driver(spark, work) == 7
    assert notes.noted("next", "undone", "closed") == (["undone", "closed"] if fails else ["next", "closed"])


def test_a_failure_at_the_end(spark: SparkSession) -> None:
    """It doesn't replace the failure before, and is one if there is none."""

    def work(calls: Calls, text: str) -> None:
        calls.at_the_end(lambda: calls.static("java.lang.Integer", "parseInt", "the end"))
        calls.static("java.lang.Integer", "parseInt", text)

    for text, failure in (("first", "first"), ("7", "the end")):
        with pytest.raises(DriverError, match=failure):
            in_driver(spark, partial(work, text=text))


def test_an_installation_without_the_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_calls, "JAR", "absent.jar")
    session: Any = None
    with pytest.raises(JarsMissing, match="where JAVA_HOME or PATH has a JDK 17"):
        driver_calls._install(session)

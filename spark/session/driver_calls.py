"""Calls of Java methods in the JVM of Spark's driver, where SQL has no statement: files, transactions.

A session of this process makes each call at once, through its gateway of Py4J. A session of Spark Connect has
no gateway: its calls are recorded, and sent together to a function of SQL (`driver/DriverCalls.java`), whose
jar is added to the session when it is first needed. Spark evaluates the function in the driver, during
planning, because the query has only constants. So all calls are made even if this process is killed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from py4j import protocol  # type: ignore[import-untyped]
from py4j.java_gateway import GatewayProperty, JavaClass, JavaMember  # type: ignore[import-untyped]
from pyspark.errors.exceptions.captured import CapturedException

from korvet.spark.session.failures import causes_of, of_call
from korvet.spark.session.jars import JarsMissing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

JAR: Final = "driver.jar"
# What a failed call raises. PySpark replaces some of Py4J's exceptions by its own.
_FAILURES: Final = (protocol.Py4JJavaError, CapturedException)
_FUNCTION: Final = "korvet_driver"
_CLASS: Final = "korvet.spark.DriverCalls"
# The calls are in a setting of the session, because plans, logs and events show the text of queries. Spark
# redacts settings with this word in their name: calls to a database contain its password.
_SETTING: Final = "korvet.secret.calls."
_SESSION: Final = "org.apache.spark.sql.classic.SparkSession"
# When a recorded call is made (DriverCalls.java).
_NEXT, _ON_FAILURE, _ALWAYS = "next", "on failure", "always"
_ready: WeakSet[SparkSession] = WeakSet()
# A function that makes calls.
Work = Callable[["Calls"], Any]


class DriverError(RuntimeError):
    """A call failed in the driver's JVM. The message is its cause, in one line and without passwords.

    classes: the names of the classes of the exception and its causes.
    """

    def __init__(self, causes: Sequence[tuple[str, str]]) -> None:
        super().__init__(of_call(causes))
        self.classes = frozenset(name for name, _ in causes)


@dataclass(frozen=True, slots=True)
class Calls:
    """Makes calls of constructors and static methods in the driver. The objects have Java's methods.

    Their results may be arguments of further calls, and one of them the result of the function that makes the
    calls; nothing else, because a recorded call has no value yet.
    """

    _client: Any
    _session: Any = None
    ends: list[tuple[str, Callable[[], Any]]] = field(default_factory=list)

    @property
    def session(self) -> Any:
        """The session."""
        return self.static(_SESSION, "active") if self._session is None else self._session

    def new(self, name: str, *arguments: Any) -> Any:
        """Return a new object of a class."""
        return JavaClass(name, self._client)(*arguments)

    def static(self, name: str, method: str, *arguments: Any) -> Any:
        """Return the result of a static method of a class."""
        return JavaMember(method, None, protocol.STATIC_PREFIX + name, self._client)(*arguments)

    def on_failure(self, call: Callable[[], Any]) -> None:
        """Make a call at the end if another one has failed. The ends are made in reverse order."""
        self.ends.append((_ON_FAILURE, call))

    def at_the_end(self, call: Callable[[], Any]) -> None:
        """Make a call at the end, whether others have failed or not."""
        self.ends.append((_ALWAYS, call))


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is of Spark Connect: the driver is not of this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def in_driver(spark: SparkSession, work: Work) -> Any:
    """Return the result of a function that makes calls: a number, a text, a truth value, or None.

    Raises DriverError if a call fails: the calls after it are not made, only those for a failure and the end.
    Through Spark Connect, also raises JarsMissing.
    """
    return _sent(spark, work) if is_connect(spark) else _made(spark, work)


def _made(spark: SparkSession, work: Work) -> Any:
    """Make calls through the gateway of this process."""
    jvm: Any = spark._jvm
    calls = Calls(jvm._gateway_client, spark._jsparkSession)
    with _driver_errors():
        try:
            result = work(calls)
        except BaseException:
            for _, call in reversed(calls.ends):
                with suppress(*_FAILURES):
                    call()
            raise
        for when, call in reversed(calls.ends):
            if when == _ALWAYS:
                call()
    return result


@contextmanager
def _driver_errors() -> Iterator[None]:
    try:
        yield
    except protocol.Py4JJavaError as error:
        raise DriverError(causes_of(error.java_exception)) from error
    except CapturedException as error:
        raise DriverError(causes_of(error._origin)) from error


def _sent(spark: SparkSession, work: Work) -> Any:
    """Record calls, and let the server of Spark Connect make them."""
    recorder = _Recorder()
    calls = Calls(recorder)
    result = work(calls)
    for recorder.when, call in reversed(calls.ends):
        call()
    name = "" if result is None else result._get_object_id()
    answer = _answer(spark, f"{name}\n{''.join(recorder.commands)}")
    if answer.startswith("\0"):
        _, *causes = answer.split("\0")
        raise DriverError(list(zip(causes[::2], causes[1::2], strict=True)))
    result = answer.removeprefix(protocol.RETURN_MESSAGE).removesuffix("\n")
    return protocol.get_return_value(result, recorder)


class _Recorder:
    """Records commands of Py4J's objects in place of their gateway. Results are the objects p0, p1, ..."""

    gateway_property = GatewayProperty(auto_field=False, pool=None, enable_memory_management=False)
    converters = None
    address = port = ""

    def __init__(self) -> None:
        self.when = _NEXT
        self.commands: list[str] = []

    def send_command(self, command: str) -> str:
        """Return an answer as of a gateway: the name of the result."""
        self.commands.append(f"{self.when}\n{command}")
        return f"{protocol.SUCCESS}{protocol.REFERENCE_TYPE}p{len(self.commands) - 1}"


def _answer(spark: SparkSession, request: str) -> str:
    if spark not in _ready:
        if not spark.catalog.functionExists(_FUNCTION):
            _install(spark)
        _ready.add(spark)
    setting = _SETTING + uuid.uuid4().hex
    spark.conf.set(setting, request)
    try:
        query = f"SELECT {_FUNCTION}(setting) FROM VALUES ('{setting}') AS requests(setting)"
        return str(spark.sql(query).collect()[0][0])
    finally:
        spark.conf.unset(setting)


def _install(spark: SparkSession) -> None:
    """Add the function to a session."""
    with as_file(files("korvet.spark.session") / JAR) as jar:
        if not jar.is_file():
            raise JarsMissing(
                "this installation of korvet lacks its jar for Spark Connect, because there was no compiler "
                "of Java when it was built: install it again where JAVA_HOME or PATH has a JDK 17 or newer"
            )
        spark.addArtifacts(str(jar))
    spark.udf.registerJavaFunction(_FUNCTION, _CLASS, "string")

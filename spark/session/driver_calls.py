"""Calls into the JVM of Spark's driver, where SQL has no statement: files, database transactions.

They are a function of SQL, so that they work through Spark Connect as in this process. Its jar (the sources
are in `driver/`) is added to the session when it is first needed. Spark evaluates the function in the driver,
during planning, because the query has only constants.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from korvet.spark.session.driver_jar import driver_jar
from korvet.spark.session.failures import of_call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FUNCTION: Final = "korvet_driver"
_CLASS: Final = "korvet.spark.DriverCalls"
# The request is in a setting of the session, because plans, logs and events show the text of queries. Spark
# redacts settings with this word in their name: requests to a database contain its password.
_SETTING: Final = "korvet.secret.request."
_ready: WeakSet[SparkSession] = WeakSet()


class DriverError(RuntimeError):
    """A call failed in the driver's JVM. The message is its cause, in one line and without passwords.

    classes: the names of the causes' classes and their superclasses.
    """

    def __init__(self, causes: list[dict[str, Any]]) -> None:
        super().__init__(of_call(causes))
        self.classes = frozenset(name for cause in causes for name in cause["classes"])


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is of Spark Connect: the driver is not of this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def call(spark: SparkSession, of: str, **request: Any) -> Any:
    """Return the driver's answer. Raises DriverError, and what driver_jar raises."""
    if spark not in _ready:
        if not spark.catalog.functionExists(_FUNCTION):
            _install(spark)
        _ready.add(spark)
    setting = _SETTING + uuid.uuid4().hex
    spark.conf.set(setting, json.dumps({"of": of, **request}))
    try:
        query = f"SELECT {_FUNCTION}(setting) FROM VALUES ('{setting}') AS requests(setting)"
        answer = json.loads(spark.sql(query).collect()[0][0])
    finally:
        spark.conf.unset(setting)
    if "failure" in answer:
        raise DriverError(answer["failure"])
    return answer["result"]


def _install(spark: SparkSession) -> None:
    """Add the function to a session."""
    if is_connect(spark):
        spark.addArtifacts(str(driver_jar()))
    else:
        # Artifacts of a session in this process are not on the class path of its functions.
        quoted = str(driver_jar()).replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(f"ADD JAR '{quoted}'")
    spark.udf.registerJavaFunction(_FUNCTION, _CLASS, "string")

"""A Spark session for korvet's tables: this Python in the workers, UTC, large Arrow batches."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import korvet
from korvet.spark.session.connect import SCHEME, connect_session
from korvet.spark.session.registration import register_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

MIN_JAVA = 17
JAVA_TIMEOUT_S = 30
# Spark's default logging is meant for clusters. Here an exception reports a failure to the user.
_QUIET_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.util.name = org.apache.spark.util
logger.util.level = off
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
# Environment variables of another Spark or Java installation that would change this one.
_FOREIGN_VARIABLES = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "PYSPARK_SUBMIT_ARGS",
    "JDK_JAVA_OPTIONS",
    "SPARK_REMOTE",
)


# Settings that korvet's tables rely on, in every session.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}
# spark-submit sets this variable: the JVM runs already.
SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"


class JavaMissing(RuntimeError):
    """There is no Java that can run Spark. The message states what was found and a remedy."""


def java_command() -> str:
    """Return the `java` that Spark will start: JAVA_HOME's, else the one on PATH. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    if home:
        command = Path(home) / "bin" / "java"
        if not command.is_file():
            raise JavaMissing(
                f"JAVA_HOME is {home}, which has no bin/java; Spark needs Java {MIN_JAVA} or newer"
            )
        return str(command)
    found = shutil.which("java")
    if found is None:
        raise JavaMissing(f"Spark needs Java {MIN_JAVA} or newer: install one or set JAVA_HOME")
    return found


def check_java() -> int:
    """Return the major version of the Java that Spark will start.

    Raises JavaMissing if it is missing or too old.
    """
    command = java_command()
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissing(f"{command} does not run: {error}") from error
    version = parse_java_version(done.stderr + done.stdout)
    if version is None:
        raise JavaMissing(f"{command} -version prints no version")
    if version < MIN_JAVA:
        raise JavaMissing(
            f"{command} is Java {version}; Spark needs Java {MIN_JAVA} or newer (set JAVA_HOME)"
        )
    return version


def parse_java_version(text: str) -> int | None:
    """Return the major version in the output of `java -version` ("1.8.0_402" is 8); None without one."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


def build_session(
    app: str = "korvet",
    master: str = "local[*]",
    *,
    jars: Sequence[Path] = (),
    conf: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> SparkSession:
    """Return a Spark session with the format `korvet` registered.

    This machine is the driver, unless the master is the URL of a Spark Connect server (`sc://host:port`).
    jars: added to the class path of driver and executors, for example the Kafka connector. conf: Spark
    settings that override all others. On a cluster, executors get korvet from the driver. Workers run
    `spark.pyspark.python`, by default this Python. Raises JavaMissing without Java 17 or newer, and as
    connect_session does.
    """
    if master.startswith(SCHEME):
        return connect_session(app, master, jars=jars, settings={**SETTINGS, **(conf or {})})
    check_java()
    settings = {
        **SETTINGS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
    }
    if runs_in_driver(master):
        settings |= _LOCAL_SETTINGS
    if jars:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars)
    settings.update(conf or {})
    with _launch_environment(settings, quiet=quiet) as logging_conf:
        return _start(app, master, settings, logging_conf)


def _start(app: str, master: str, settings: dict[str, str], logging_conf: Path | None) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 (imports Py4J: not needed on executors)

    builder = SparkSession.builder.appName(app).master(master)
    if logging_conf is not None:
        option = f"-Dlog4j2.configurationFile={logging_conf.as_uri()}"
        extra = settings.get("spark.driver.extraJavaOptions", "")
        settings["spark.driver.extraJavaOptions"] = f"{option} {extra}".strip()
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return _prepared(session)


def runs_in_driver(master: str) -> bool:
    """Return whether tasks run in the driver's process: `local` and `local[N]`, but not `local-cluster`."""
    return master.partition("[")[0] == "local"


def is_submitted() -> bool:
    """Return whether spark-submit runs this program. It then sets the master, jars and memory."""
    return SUBMITTED_VARIABLE in os.environ


def submitted_session(app: str) -> SparkSession:
    """Return the session of a program that spark-submit runs, with the format `korvet` registered."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 (imports Py4J: not needed on executors)

    builder = SparkSession.builder.appName(app)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return _prepared(builder.getOrCreate())


def _prepared(session: SparkSession) -> SparkSession:
    """The session with the format registered, and with korvet on the executors of a cluster."""
    context = session.sparkContext
    if not runs_in_driver(str(context.master)):
        import tempfile  # noqa: PLC0415 (only here, not on executors)

        from korvet.spark.bundle import is_bundled, write_bundle  # noqa: PLC0415 (as above)

        if not is_bundled():
            # Executors that start later download it from this folder, too.
            folder = tempfile.mkdtemp(prefix="korvet-spark-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            context.addPyFile(str(write_bundle(Path(folder) / "korvet.zip")))
    register_format(session)
    return session


@contextmanager
def _launch_environment(settings: Mapping[str, str], *, quiet: bool) -> Iterator[Path | None]:
    """Set the environment of the JVM and its workers, and restore this process's at the end of the block.

    The parent directory of the package is added to the workers' path, so that a source tree works without
    installation. Yields the file of the logging configuration, None if not `quiet`.
    """
    import tempfile  # noqa: PLC0415 (only here, not on executors)

    saved = dict(os.environ)
    root = str(Path(korvet.__file__).absolute().parents[1])
    with tempfile.TemporaryDirectory(prefix="korvet-spark-") as folder:
        logging_conf = None
        if quiet:
            logging_conf = Path(folder) / "log4j2.properties"
            logging_conf.write_text(_QUIET_LOGGING)
        for name in _FOREIGN_VARIABLES:
            os.environ.pop(name, None)
        # PySpark reads only these variables, not the settings.
        os.environ["PYSPARK_PYTHON"] = settings["spark.pyspark.python"]
        os.environ["PYSPARK_DRIVER_PYTHON"] = settings["spark.pyspark.driver.python"]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, saved.get("PYTHONPATH")]))
        try:
            yield logging_conf
        finally:
            os.environ.clear()
            os.environ.update(saved)

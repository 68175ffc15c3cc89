"""Sessions of a Spark Connect server, which gets korvet and the jars of a command from this client."""

from __future__ import annotations

import socket
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.errors import PySparkException

from korvet.spark.bundle import is_bundled, write_bundle
from korvet.spark.session.failures import in_one_line
from korvet.spark.session.registration import register_format
from korvet.spark.source.source import FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

SCHEME: Final = "sc://"
# Spark's client itself tries again for ten minutes.
CONNECT_TIMEOUT_S: Final = 10
_PACKAGES: Final = ("grpc", "grpc_status", "google.rpc", "zstandard")


class ConnectError(RuntimeError):
    """A Spark Connect server can't be used. The message states which one, the reason, and a remedy."""


def connect_session(
    app: str, url: str, *, jars: Sequence[Path] = (), settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a new session of the server at `sc://host:port`, with the format `korvet` registered.

    jars: sent to the server for this session. settings: of the session; a server's own can't be changed.
    Raises ConnectError if the server does not answer, runs another version of Spark, or can't load korvet.
    """
    _check_packages()
    where = _reachable(url)
    from pyspark.sql import SparkSession  # noqa: PLC0415 (imports Py4J: not needed on executors)

    builder = SparkSession.builder.remote(url).appName(app)
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.create()
    try:
        _check_version(session, where)
        for jar in jars:
            session.addArtifacts(str(jar))
        _send_korvet(session, where)
    except BaseException:
        session.stop()
        raise
    return session


def _check_packages() -> None:
    try:
        missing = [name for name in _PACKAGES if find_spec(name) is None]
    except ModuleNotFoundError as error:
        missing = [str(error.name)]
    if missing:
        raise ConnectError(
            f"Spark Connect needs Python packages that are missing here ({', '.join(missing)}): "
            "pip install 'korvet[connect]'"
        )


def _reachable(url: str) -> str:
    """The server's host and port, which accept connections of gRPC. Raises ConnectError."""
    import grpc  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415 (imports grpc)

    try:
        channels = DefaultChannelBuilder(url)
    except (PySparkException, ValueError) as error:
        raise ConnectError(f"{url} is not the URL of a Spark Connect server: {in_one_line(error)}") from error
    where = str(channels.endpoint)
    host, _, port = where.rpartition(":")
    try:
        # Says at once what gRPC tries again without a word, for example an unknown host.
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConnectError(f"no Spark Connect server at {where}: {error.strerror or error}") from error
    with channels.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError as error:
            raise ConnectError(
                f"no Spark Connect server at {where}: what listens there does not answer gRPC within "
                f"{CONNECT_TIMEOUT_S} s (;use_ssl=true at the end of the URL turns TLS on)"
            ) from error
    return where


def _check_version(session: SparkSession, where: str) -> None:
    """Raises ConnectError if the server's Spark is not of this client's minor version.

    The data source and Python functions are pickled here and run by the server's PySpark.
    """
    ours, theirs = pyspark.__version__, session.version
    if ours.split(".")[:2] != theirs.split(".")[:2]:
        raise ConnectError(
            f"the Spark Connect server at {where} runs Spark {theirs}, and this client is PySpark {ours}: "
            f"install pyspark=={'.'.join(theirs.split('.')[:2])}.* here, or use another server"
        )


def _send_korvet(session: SparkSession, where: str) -> None:
    """Send korvet and register its format, and check that the server's Python can load it."""
    if not is_bundled():
        with tempfile.TemporaryDirectory(prefix="korvet-spark-") as folder:
            session.addArtifacts(str(write_bundle(Path(folder) / "korvet.zip")), pyfile=True)
    register_format(session)
    try:
        session.read.format(FORMAT).load().schema  # noqa: B018 (a property that asks the server)
    except PySparkException as error:
        raise ConnectError(
            f"the Spark Connect server at {where} can't load korvet: {in_one_line(error)}; its Python must "
            "be of this client's version and needs pyarrow, pandas, numpy, redis and crc32c"
        ) from error

"""A server of Spark Connect for tests: its own process, on loopback, with the same jars as the session."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import Child, bound_to_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_DEADLINE_S = 120
# For a few records the JVM's second compiler takes longer than the work.
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@contextmanager
def connect_server(folder: Path, conf: Mapping[str, str]) -> Iterator[str]:
    """Returns the server's URL. Its Python has korvet's dependencies; korvet comes from the clients."""
    home, port = Path(pyspark.__file__).parent, free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        **conf,
    }
    words = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--class", SERVER]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    server = Child([*bound_to_us(), *submit, *words, "spark-internal"], folder / "connect.log", environ)
    try:
        until(lambda: _listens(port) or not server.running, START_DEADLINE_S, "a Spark Connect server")
        assert server.running, server.output()[-4000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0

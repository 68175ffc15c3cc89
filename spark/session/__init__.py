"""The Spark session: its settings, jars, Hadoop's folders, and failures in one line."""

from korvet.spark.session.delta import delta_session
from korvet.spark.session.jars import find_jars
from korvet.spark.session.session import build_session, submitted_session

__all__ = ["build_session", "delta_session", "find_jars", "submitted_session"]

"""The commands report, export and jars of `korvet`."""

from korvet.spark.cli.export_command import export
from korvet.spark.cli.jars_command import jars
from korvet.spark.cli.report_command import report

__all__ = ["export", "jars", "report"]

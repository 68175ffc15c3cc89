"""The commands report, export, tables and jars of `korvet`."""

import click

from korvet.spark.versions import UnsupportedSpark, check_supported

try:
    check_supported()
except UnsupportedSpark as error:
    raise click.ClickException(str(error)) from error

from korvet.spark.cli.export_command import export
from korvet.spark.cli.jars_command import jars
from korvet.spark.cli.report_command import report
from korvet.spark.cli.tables_command import tables

__all__ = ["export", "jars", "report", "tables"]

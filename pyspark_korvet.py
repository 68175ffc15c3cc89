"""Lets Spark find the format `korvet` by itself:
it imports modules named pyspark_* and registers their DefaultSource.
"""

from korvet.spark.source import KorvetDataSource as DefaultSource

__all__ = ["DefaultSource"]

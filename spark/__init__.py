"""Consumer groups and topics in Spark: the data source `korvet`, decoded tables, reports, exports.

Executors import korvet.spark.source, .entries, .batches, .store and .decode only; they need pyarrow, numpy
and redis.
"""

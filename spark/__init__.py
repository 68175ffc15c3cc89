"""Consumer groups and topics in Spark: the data source `korvet`, decoded tables, reports, exports.

Executors need korvet.offsets and korvet.spark, and pyarrow, numpy and redis; crc32c too where topics have
storage.layout=batch.
"""

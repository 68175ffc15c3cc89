"""Consumer groups and topics in Spark: the data source `korvet`, decoded tables, reports, exports.

Executors need korvet.offsets and korvet.spark, with pyarrow, numpy and redis; also crc32c for topics with
storage.layout=batch.
"""

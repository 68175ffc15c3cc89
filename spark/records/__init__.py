"""Stream entries and record batches to Arrow columns. Pure: no Redis, no Spark session."""

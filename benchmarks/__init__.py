"""Benchmarks: the suite, which compares korvet with Redis and Kafka, and separate programs."""

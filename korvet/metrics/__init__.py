"""What a metric is, how it is counted, and how it is written for Prometheus. Pure: no I/O and no clock."""

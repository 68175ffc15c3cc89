"""What the benchmarks run on: servers, load clients, records, measuring, and how results are shown."""

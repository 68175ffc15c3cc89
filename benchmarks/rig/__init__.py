"""The parts of the benchmarks: servers, load clients, records, measuring, and output."""

"""The sink of the data source `korvet`: rows become records, each of them once."""

"""The sink of the data source `korvet`: rows become records of brokers, each of them once."""

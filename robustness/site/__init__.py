"""The servers, brokers and network of a robustness run, and the faults that happen to them."""

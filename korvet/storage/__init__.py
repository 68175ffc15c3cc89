"""Redis as the log: keys, the raw link, the Function library, the topic catalogue and the partition logs."""

"""The live brokers of a keyspace: leases, who leads which partition, and requests between brokers."""

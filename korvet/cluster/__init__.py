"""What brokers share: topics, configs, leases, who leads which partition, requests between brokers."""

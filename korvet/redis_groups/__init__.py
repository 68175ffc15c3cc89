"""The Redis consumer groups that carry the names of Kafka groups."""

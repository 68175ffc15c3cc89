"""`korvet demo`: Kafka clients, Redis clients and Spark on one broker. Every number shown is checked."""

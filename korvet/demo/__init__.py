"""`korvet demo`: Kafka clients, native Redis clients and Spark on one broker, in about a minute."""

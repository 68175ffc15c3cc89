"""`korvet demo`: Kafka clients, Redis clients and Spark on one broker, each claim checked as it is shown."""

"""Faults on request, for tests of Kafka clients. Only an ephemeral broker has them."""

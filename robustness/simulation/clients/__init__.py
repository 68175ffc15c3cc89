"""Simulated Kafka and Redis clients, which write what they did and were answered to a history."""

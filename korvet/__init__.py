"""Kafka-protocol front end whose log is Redis Streams."""

__version__ = "0.1.0"

"""Tests with a real Prometheus that scrapes brokers."""

"""Clients and faults on real brokers, and checkers of what the clients saw."""

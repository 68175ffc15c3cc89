"""A deterministic simulation of brokers, clients, networks and Redis servers on one virtual clock."""

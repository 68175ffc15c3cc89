"""Client quotas: their entities, their limits, and when a client has to wait. Pure."""

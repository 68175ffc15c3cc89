"""The admin endpoint of a broker: metrics, health and status by HTTP."""

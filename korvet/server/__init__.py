"""Connections: asyncio at the rim, bytes in, requests dispatched, responses out in order."""

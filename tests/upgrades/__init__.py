"""Rolling upgrades: the last release beside this one, under load."""

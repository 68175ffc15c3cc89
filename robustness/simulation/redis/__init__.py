"""A simulated Redis: the commands that korvet uses, its scripts in an embedded Lua, and replication."""

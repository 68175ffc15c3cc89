"""The broker's settings: declarations, keys, loading from files, variables and flags, and checks."""

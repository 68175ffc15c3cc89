"""The embedded server: a private Valkey (or Redis) process on one data folder, which ends with its owner."""

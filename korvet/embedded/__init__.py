"""The embedded server: a private Valkey (or Redis) process, which ends with its owner: on one data folder, or
without any for tests.
"""

"""One queue for many workers: a share group whose members are Kafka share consumers, and Redis clients that
take from the same Redis group. Workers are killed at random (`python -m robustness.queue`).
"""

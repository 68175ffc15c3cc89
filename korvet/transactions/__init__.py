"""The transaction coordinator as a pure state machine (KIP-98, KIP-360, KIP-890): the entrance is `shard`.

No I/O, no clock, no timers of its own; korvet.transactions.shard describes how to drive it.
"""

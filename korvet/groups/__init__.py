"""The coordinator of classic consumer groups as a pure state machine.

Requests come in as data with the current time; records and replies go out as data. No I/O, no clock, no
randomness. `shard.GroupShard` is the entrance, `messages` the vocabulary.
"""

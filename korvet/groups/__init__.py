"""The coordinator of consumer groups as a pure state machine.

Requests and the current time come in as data; records and replies go out as data. No I/O, no clock, no
randomness. `shard.GroupShard` is the entrance, `messages` the vocabulary.
"""

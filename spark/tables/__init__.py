"""The tables of `__consumer_offsets`: decoding, views, health, history."""

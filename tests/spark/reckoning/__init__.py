"""The tables of `__consumer_offsets`, reckoned in plain Python over random histories.

Only the codec of `korvet.offsets` is shared with the tables under test.
"""

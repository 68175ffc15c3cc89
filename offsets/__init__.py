"""The offset domain: entry IDs as offsets, and the records of `__consumer_offsets`.

Pure functions and immutable data over the standard library: no I/O, no event loop, no Redis. Both the broker
and Spark executors import this package, the latter without anything else of korvet installed.
"""

"""Log compaction: which records stay, and the copy of them inside Redis."""

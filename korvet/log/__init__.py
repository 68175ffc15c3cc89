"""One partition's log over its Redis stream: appends, reads, transactions and the tail cache."""

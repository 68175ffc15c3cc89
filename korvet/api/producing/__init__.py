"""The steps of a Produce request: destination, checks, transaction, decompression and response."""

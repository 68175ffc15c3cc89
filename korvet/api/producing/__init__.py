"""The steps of a Produce request: checks, decompression, transaction, append and response."""

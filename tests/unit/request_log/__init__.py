"""The rules of the request log, on any clock."""

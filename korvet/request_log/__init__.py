"""The rules of the request log. Pure."""

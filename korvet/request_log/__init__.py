"""The rules of the request log. Pure: time is passed in."""

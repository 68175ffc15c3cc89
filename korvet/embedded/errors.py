"""What can go wrong with the embedded server."""


class EmbeddedServerError(Exception):
    """The embedded server cannot be run. The message tells the user why, and what to do about it."""

"""The error of the embedded server."""


class EmbeddedServerError(Exception):
    """The embedded server can't run. The message gives the user the reason and a remedy."""

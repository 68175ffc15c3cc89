"""The errors that end an authentication."""


class SaslFailure(Exception):
    """An authentication that is refused with a text for the client, and a reason for the log."""

    def __init__(self, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.reason = text if reason is None else reason


class InvalidCredentials(Exception):
    """An authentication that is refused for a reason that the client must not learn, such as whether a
    user exists.
    """


class UnsupportedMechanism(Exception):
    """A mechanism that is not enabled."""


class IllegalState(Exception):
    """A SASL request that is not allowed in the current state."""

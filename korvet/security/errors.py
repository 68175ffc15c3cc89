"""What an authentication ends with when it is refused."""


class SaslFailure(Exception):
    """An authentication that is refused with a text that the client may read."""


class InvalidCredentials(Exception):
    """One that is refused for a reason that the client must not learn, like whether a user exists."""


class UnsupportedMechanism(Exception):
    """A mechanism that is not enabled."""


class IllegalState(Exception):
    """A SASL request at a time when there is none to be."""

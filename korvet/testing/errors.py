"""The error of korvet.testing."""


class KorvetBrokerError(Exception):
    """The broker does not start, refuses a request, or does not become what a test waits for."""

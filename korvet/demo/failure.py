"""The error of the demo."""


class DemoFailed(Exception):
    """A step failed or timed out. The message is for the user."""


def expect(what: str, found: object, wanted: object) -> None:
    """Raise DemoFailed unless the value found equals the value that the step claims."""
    if found != wanted:
        raise DemoFailed(f"{what}: found {found!r}, expected {wanted!r}")

"""The one error of the demonstration."""


class DemoFailed(Exception):
    """A step did not do what it says, or not in time. The message is for the user."""


def expect(what: str, found: object, wanted: object) -> None:
    """Raise DemoFailed unless what was found is what the step claims."""
    if found != wanted:
        raise DemoFailed(f"{what}: {found!r}, where {wanted!r} was expected")

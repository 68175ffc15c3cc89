"""The few names of the `cython` module that the kernel uses when it runs uncompiled and Cython is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Thing = TypeVar("Thing")

compiled = False
Py_ssize_t = uint = ulonglong = longlong = int
p_uchar = object


def _same(thing: Thing) -> Thing:
    return thing


cfunc = inline = nogil = cclass = _same


def exceptval(*_: object, **__: object) -> Callable[[Thing], Thing]:
    """A decorator that changes nothing."""
    return _same


def cast(_: object, value: Thing) -> Thing:
    """The value itself: Python integers need no C type."""
    return value


def declare(_: object, value: Any = None) -> Any:
    """The initial value."""
    return value

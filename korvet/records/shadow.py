"""The few names of the `cython` module that kernels use when they run uncompiled and Cython is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Thing = TypeVar("Thing")

compiled = False
Py_ssize_t = uint = ulonglong = longlong = int
bint = bool
p_uchar = object


def _same(thing: Thing) -> Thing:
    return thing


cfunc = inline = nogil = cclass = final = _same


def exceptval(*_: object, **__: object) -> Callable[[Thing], Thing]:
    """A decorator that changes nothing."""
    return _same


def cast(_: object, value: Thing) -> Thing:
    """The value itself: Python integers need no C type."""
    return value


def declare(_: object, value: Any = None, **__: object) -> Any:
    """The initial value."""
    return value

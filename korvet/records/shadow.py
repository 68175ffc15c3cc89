"""The few names of the `cython` module that kernels use when they run uncompiled and Cython is absent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Thing = TypeVar("Thing")

compiled = False
Py_ssize_t = uint = uchar = ulonglong = longlong = int
bint = bool
p_uchar = object
# C types that are only part of other types.
const: dict[Any, Any] = {uchar: object}


def _same(thing: Thing) -> Thing:
    return thing


cfunc = inline = nogil = cclass = final = typedef = pointer = _same


def exceptval(*_: object, **__: object) -> Callable[[Thing], Thing]:
    """A decorator that changes nothing."""
    return _same


def cast(_: object, value: Thing) -> Thing:
    """The value itself: Python integers need no C type."""
    return value


def struct(**members: object) -> type:
    """A class with these members; unlike in C, they are undefined until they are set."""
    return type("Struct", (), {"__slots__": tuple(members)})


def declare(kind: Any, value: Any = None, **__: object) -> Any:
    """The initial value; without one, a struct whose members are undefined."""
    return kind() if value is None and getattr(kind, "__name__", "") == "Struct" else value

"""All declared metric families, by subject."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import NamedTuple

from korvet.metrics import families
from korvet.metrics.family import Family


class Subject(NamedTuple):
    """The families of one module."""

    about: str
    """The first line of the module's docstring."""
    families: tuple[Family, ...]


@cache
def subjects() -> tuple[Subject, ...]:
    """Returns all subjects, in the order of their names. Raises ValueError if two families share a name."""
    found = [_subject(each.name) for each in pkgutil.iter_modules(families.__path__)]
    names = [family.name for subject in found for family in subject.families]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"families that are declared twice: {', '.join(twice)}")
    return tuple(found)


@cache
def declared() -> dict[str, Family]:
    """Returns all families by name."""
    return {family.name: family for subject in subjects() for family in subject.families}


def _subject(name: str) -> Subject:
    module = import_module(f"{families.__name__}.{name}")
    about = (module.__doc__ or "").partition("\n")[0]
    return Subject(about, tuple(each for each in vars(module).values() if isinstance(each, Family)))

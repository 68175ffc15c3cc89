"""The modules of korvet/api hold to their form: one API each, with a header that says what is registered."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys

import pytest

import korvet.api
from korvet.protocol import registry

korvet.api.load_all()
APIS = registry.registered()


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_header_of_a_module_says_its_versions(api: registry.Api) -> None:
    header = " ".join((sys.modules[api.refuse.__module__].__doc__ or "").split())
    last = f"-{api.max_version}" if api.max_version > api.min_version else ""
    plural = "s" if last else ""
    expected = rf"{api.name} \(key {api.key}\), version{plural} {api.min_version}{last}\b"
    assert re.match(expected, header), header


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_a_module_is_named_after_its_api(api: registry.Api) -> None:
    snake = re.sub(r"(?<!^)([A-Z])", r"_\1", api.name).lower()
    assert api.refuse.__module__ == f"korvet.api.{snake}"


def test_a_module_has_one_api_and_a_module_without_one_lies_in_a_folder() -> None:
    modules = [api.refuse.__module__ for api in APIS]
    assert len(set(modules)) == len(modules)
    found = [
        f"korvet.api.{module.name}"
        for module in pkgutil.iter_modules(korvet.api.__path__)
        if not module.ispkg
    ]
    assert sorted(modules) == sorted(found)


def test_no_handler_reaches_into_another() -> None:
    """They share helpers (a leader epoch's check, the constants of Metadata), but never call a handler."""
    handlers = {api.handle or api.submit for api in APIS}
    for module in pkgutil.iter_modules(korvet.api.__path__):
        if module.ispkg:
            continue
        loaded = importlib.import_module(f"korvet.api.{module.name}")
        foreign = {
            value
            for value in vars(loaded).values()
            if callable(value) and value.__module__ != loaded.__name__
        }
        assert not foreign & handlers

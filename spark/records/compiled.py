"""The compiled kernel; None if there is none for this Python."""

from __future__ import annotations

import zipimport
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_NAME = "korvet.spark.records.kernel"


def _found() -> ModuleType | None:
    own: object = None if __spec__ is None else __spec__.loader
    if isinstance(own, zipimport.zipimporter):
        return _from_archive(own)
    spec = find_spec(_NAME)
    is_compiled = spec is not None and isinstance(spec.loader, ExtensionFileLoader)
    return import_module(_NAME) if is_compiled else None


def _from_archive(archive: zipimport.zipimporter) -> ModuleType | None:
    """The kernel in this module's archive (`--py-files`); Python imports no extension modules from one.

    None also for a kernel that was built on another system.
    """
    for suffix in EXTENSION_SUFFIXES:
        try:
            data = archive.get_data(str(Path(__file__).with_name("kernel") / f"__init__{suffix}"))
            with NamedTemporaryFile(suffix=suffix) as copy:
                copy.write(data)
                copy.flush()
                loader = ExtensionFileLoader(_NAME, copy.name)
                spec = spec_from_file_location(_NAME, copy.name, loader=loader)
                if spec is None:
                    continue
                module = module_from_spec(spec)
                loader.exec_module(module)
        except (OSError, ImportError):
            continue
        return module
    return None


kernel = _found()

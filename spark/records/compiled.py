"""The compiled kernel; None if there is none for this Python."""

from __future__ import annotations

import logging
import sysconfig
import zipimport
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_PACKAGE = "kernel"
_NAME = f"korvet.spark.records.{_PACKAGE}"
log = logging.getLogger(__name__)


def _found() -> tuple[ModuleType | None, str]:
    """The kernel, or None and the reason why there is none."""
    own: object = None if __spec__ is None else __spec__.loader
    if isinstance(own, zipimport.zipimporter):
        return _from_archive(own)
    spec = find_spec(_NAME)
    if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
        return import_module(_NAME), ""
    return None, "korvet was installed without a C compiler"


def _from_archive(archive: zipimport.zipimporter) -> tuple[ModuleType | None, str]:
    """The kernel in this module's archive (`--py-files`); Python imports no extension modules from one.

    None also for a kernel that was built for another Python or another system.
    """
    reason = f"{archive.archive} has none for {sysconfig.get_config_var('SOABI')}"
    for suffix in EXTENSION_SUFFIXES:
        # Within the archive, because its own path may be relative (`./korvet.zip` on executors).
        member = f"{archive.prefix}{_PACKAGE}/__init__{suffix}"
        try:
            data = archive.get_data(member)
        except OSError:
            continue
        try:
            with NamedTemporaryFile(suffix=suffix) as copy:
                copy.write(data)
                copy.flush()
                loader = ExtensionFileLoader(_NAME, copy.name)
                spec = spec_from_file_location(_NAME, copy.name, loader=loader)
                if spec is None:
                    continue
                module = module_from_spec(spec)
                loader.exec_module(module)
        except (OSError, ImportError) as error:
            reason = f"{member} in {archive.archive} can't be loaded: {error}"
            continue
        return module, ""
    return None, reason


kernel, _missing = _found()


@cache
def warn_if_missing() -> None:
    """Log why there is no kernel, once in this process."""
    if kernel is None:
        log.warning("korvet reads without its compiled kernel, at a fraction of the speed: %s", _missing)

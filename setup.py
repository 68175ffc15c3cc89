"""Builds the compiled form of the two kernels, and the server module. Without a C compiler the installation
succeeds all the same.

Each kernel is a package. Its modules are joined into one unit for the compiler, so that calls between them
are inlined; the kernel of Spark gets the modules that it imports from the record kernel, too. The compiled
form is the package's `__init__`, which Python prefers to `__init__.py`.

The server module is a shared library that Redis or Valkey loads, not Python.

KORVET_REQUIRE_EXT=1 makes it an error if any of them is not built.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

REQUIRE = "KORVET_REQUIRE_EXT"
RECORD_KERNEL = "korvet.records.kernel"
SPARK_KERNEL = "korvet.spark.records.kernel"
SERVER_MODULE = "korvet.storage.module.korvet_module"
# Inlines all functions of the kernels that ask for it. A compiler that decides by size leaves out the
# largest, and copies their structs for each record: a batch takes up to 25 % longer.
MACROS = [("CYTHON_INLINE", "inline __attribute__((always_inline))")]
# -O3 gains up to 10 %. Where a function begins in a cache line, which changes of other functions decide if it
# isn't aligned, costs up to 20 %.
OPTIONS = ["-O3", "-falign-functions=64"]
FUTURE = "from __future__ import annotations\n"
KERNELS = (RECORD_KERNEL, SPARK_KERNEL)
PART = re.compile(r"^from (korvet\.(?:spark\.)?records\.kernel\.\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)


def folder_of(name: str) -> Path:
    """The folder of a package; of a module, its file without suffix."""
    return Path(*name.split("."))


def joined(module: str, seen: set[str]) -> str:
    """The source of a module of a kernel, with the sources of other modules of kernels in place of their
    imports.

    Each of them is there once: those of the modules in `seen` are left out.
    """

    def source_of(imported: re.Match[str]) -> str:
        if imported[1] in seen:
            return ""
        seen.add(imported[1])
        return joined(imported[1], seen).replace(FUTURE, "")

    return PART.sub(source_of, folder_of(module).with_suffix(".py").read_text("utf-8"))


class ServerModule(Extension):
    """A shared library for Redis and Valkey, which has nothing to do with Python."""


class TolerantBuild(build_ext):
    """Translates and compiles; any failure costs speed only, unless the environment forbids that."""

    def run(self) -> None:
        try:
            for extension in self.extensions:  # setuptools has put marks on them: keep the objects
                extension.sources = self.translated(extension)
            super().run()
        except (Exception, SystemExit) as error:
            if os.environ.get(REQUIRE, "") not in {"", "0"}:
                raise
            self.extensions = []
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            sys.stderr.write(
                "korvet: the kernels stay uncompiled, and there is no server module (slower, same results): "
                f"{reason[0][:120]}\n"
            )

    def get_ext_filename(self, fullname: str) -> str:
        """The file of an extension, with or without its package. The server module's doesn't depend on the
        version of Python.
        """
        path = Path(*fullname.split("."))
        if path.name == Path(*SERVER_MODULE.split(".")).name:
            return f"{path}.so"
        return str(super().get_ext_filename(fullname))

    def get_libraries(self, ext: Extension) -> list[str]:
        """The libraries of an extension; the server module has none, not even Python's."""
        return [] if isinstance(ext, ServerModule) else list(super().get_libraries(ext))

    def translated(self, extension: Extension) -> list[str]:
        """The C sources of an extension."""
        if isinstance(extension, ServerModule):
            return list(extension.sources)
        from Cython.Build import cythonize  # noqa: PLC0415 - absent if nothing gets compiled

        kernel = extension.name.removesuffix(".__init__")
        unit = Path(self.build_temp, f"{kernel.replace('.', '_')}.py")
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text(joined(extension.name, set()), "utf-8")
        translated: list[str] = cythonize([Extension(kernel, [str(unit)])], quiet=True)[0].sources
        return translated


def extension(kernel: str) -> Extension:
    """A kernel's extension: the `__init__` of its package."""
    folders = list(map(folder_of, KERNELS))
    return Extension(
        f"{kernel}.__init__",
        [str(path) for folder in folders for path in sorted(folder.glob("*.py"))],
        include_dirs=list(map(str, folders)),
        define_macros=[] if sys.platform == "win32" else MACROS,
        extra_compile_args=[] if sys.platform == "win32" else OPTIONS,
        depends=sorted(map(str, folders[0].glob("_crc32c.*"))),
    )


def server_module() -> Extension:
    """The server module."""
    folder = folder_of(SERVER_MODULE).parent
    return ServerModule(
        SERVER_MODULE,
        [str(folder / "korvet_module.c")],
        depends=[str(folder / "server_api.h")],
        extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
    )


setup(
    ext_modules=[
        *map(extension, KERNELS),
        *([] if sys.platform == "win32" else [server_module()]),
    ],
    cmdclass={"build_ext": TolerantBuild},
)

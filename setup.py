"""Builds the compiled form of the two kernels, the server module, and the jar for Spark Connect. Without a
compiler of C or of Java the installation succeeds all the same.

Each kernel is a package. Its modules are joined into one unit for the compiler, so that calls between them
are inlined; the kernel of Spark gets the modules that it imports from the record kernel, too. The compiled
form is the package's `__init__`, which Python prefers to `__init__.py`.

The server module is a shared library that Redis or Valkey loads, not Python. The jar is a class that Spark
loads; it is compiled against stubs of the few classes of Spark and Py4J that it uses.

KORVET_REQUIRE_EXT=1 makes it an error if any of them is not built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

if TYPE_CHECKING:
    from collections.abc import Callable

REQUIRE = "KORVET_REQUIRE_EXT"
RECORD_KERNEL = "korvet.records.kernel"
SPARK_KERNEL = "korvet.spark.records.kernel"
SERVER_MODULE = "korvet.redis.module.korvet_module"
DRIVER_JAR = "korvet.spark.session.driver"
# Java 17 is the oldest that Spark 4 runs on.
JAVA_OPTIONS = ("--release", "17", "-Xlint:all,-serial", "-Werror")
# A module of every JDK, and of the runtimes of some distributions, which lack the command javac.
JAVAC = "jdk.compiler/com.sun.tools.javac.Main"
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


def java_compiler() -> list[str] | None:
    """The command of the compiler of JAVA_HOME's Java, else of that on PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=Path(home, "bin") if home else None)
    if java is None:
        return None
    command = [java, "-m", JAVAC]
    found = subprocess.run([*command, "-version"], capture_output=True, check=False)
    return None if found.returncode else command


def succeeds(build: Callable[[], None], loss: str) -> bool:
    """Build, and say what is lost by a failure. Raises it if the environment demands all."""
    try:
        build()
    except (Exception, SystemExit) as error:
        if os.environ.get(REQUIRE, "") not in {"", "0"}:
            raise
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        sys.stderr.write(f"korvet: {loss}: {reason[0][:120]}\n")
        return False
    return True


class ServerModule(Extension):
    """A shared library for Redis and Valkey, which has nothing to do with Python."""


class DriverJar(Extension):
    """A jar for the JVM of Spark's driver."""


class TolerantBuild(build_ext):
    """Translates and compiles; a failure costs speed or a feature, unless the environment forbids that."""

    def run(self) -> None:
        jars = [extension for extension in self.extensions if isinstance(extension, DriverJar)]
        self.extensions = [extension for extension in self.extensions if extension not in jars]
        loss = "there are no exports and stored tables through Spark Connect"
        built = [jar for jar in jars if succeeds(partial(self.build_jar, jar), loss)]
        loss = "the kernels stay uncompiled, and there is no server module (slower, same results)"
        built += self.extensions if succeeds(self.build_others, loss) else []
        self.extensions = built

    def build_others(self) -> None:
        """Build the extensions but the jars."""
        for extension in self.extensions:  # setuptools has put marks on them: keep the objects
            extension.sources = self.translated(extension)
        # The compiler takes 20 s for each kernel.
        self.parallel = True
        super().run()

    def build_jar(self, ext: DriverJar) -> None:
        """Compile the source of a jar against its stubs. Without a compiler, take the jar that an editable
        installation has left in the source tree, or that a source distribution has.
        """
        (source, *_), classes = ext.sources, Path(self.build_temp, "classes").absolute()
        jar = Path(self.get_ext_fullpath(ext.name))
        jar.parent.mkdir(parents=True, exist_ok=True)
        compiler = java_compiler()
        if compiler is None:
            kept = folder_of(ext.name).with_suffix(".jar")
            if not kept.is_file():
                raise FileNotFoundError("no Java with a compiler in JAVA_HOME or on PATH")
            if not jar.exists():
                shutil.copyfile(kept, jar)
            return
        shutil.rmtree(classes, ignore_errors=True)
        options = ("-implicit:none", "-sourcepath", Path(source).with_name("stubs"), "-d", classes)
        command = [*compiler, *JAVA_OPTIONS, *options, source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{source} can't be compiled: {done.stdout}{done.stderr}")
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(classes.rglob("*.class")):
                archive.write(path, path.relative_to(classes).as_posix())

    def get_ext_filename(self, fullname: str) -> str:
        """The file of an extension, with or without its package. The server module's and the jar's don't
        depend on the version of Python.
        """
        path = Path(*fullname.split("."))
        for name, suffix in ((SERVER_MODULE, "so"), (DRIVER_JAR, "jar")):
            if path.name == Path(*name.split(".")).name:
                return f"{path}.{suffix}"
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


def driver_jar() -> Extension:
    """The jar for the driver."""
    folder = folder_of(DRIVER_JAR)
    stubs = map(str, sorted(folder.glob("stubs/**/*.java")))
    return DriverJar(DRIVER_JAR, [str(folder / "DriverCalls.java"), *stubs])


setup(
    ext_modules=[
        *map(extension, KERNELS),
        driver_jar(),
        *([] if sys.platform == "win32" else [server_module()]),
    ],
    cmdclass={"build_ext": TolerantBuild},
)

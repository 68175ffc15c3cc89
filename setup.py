"""Builds the compiled form of the two kernels if there is a C compiler; goes on without it if there is none.

KORVET_REQUIRE_EXT=1 makes a missing compiled kernel an error.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

REQUIRE = "KORVET_REQUIRE_EXT"


class TolerantBuild(build_ext):
    """Translates and compiles; any failure costs speed only, unless the environment forbids that."""

    def run(self) -> None:
        try:
            from Cython.Build import cythonize  # noqa: PLC0415 - absent where nothing gets compiled

            for extension in self.extensions:  # setuptools has put marks on them: keep the objects
                extension.sources = cythonize([extension], quiet=True)[0].sources
            super().run()
        except (Exception, SystemExit) as error:
            if os.environ.get(REQUIRE, "") not in {"", "0"}:
                raise
            self.extensions = []
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            sys.stderr.write(
                f"korvet: the kernels stay uncompiled (slower, same results): {reason[0][:120]}\n"
            )


setup(
    ext_modules=[
        Extension(
            "korvet.records.kernel",
            ["korvet/records/kernel.py"],
            include_dirs=["korvet/records"],
            depends=["korvet/records/_crc32c.h", "korvet/records/_crc32c.pxd"],
        ),
        Extension("korvet.spark.records.kernel", ["korvet/spark/records/kernel.py"]),
    ],
    cmdclass={"build_ext": TolerantBuild},
)

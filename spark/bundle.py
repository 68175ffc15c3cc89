"""The zip file for `--py-files` with the part of korvet that executors need, and drivers in a cluster.

It contains korvet.offsets, korvet.properties and korvet.spark, with the compiled kernel of this Python
(korvet.spark.records.compiled):

    python -m korvet.spark.bundle korvet.zip
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import korvet

PARTS = ("offsets", "spark")
MODULES = ("__init__.py", "properties.py")
FORMAT_MODULE = "pyspark_korvet.py"
# Of what is compiled.
SOURCES = (".c", ".java")


def is_bundled() -> bool:
    """Return whether korvet is imported from an archive. Executors then have that archive."""
    return not Path(korvet.__file__).parent.is_dir()


def write_bundle(target: Path) -> Path:
    """Write the zip file and return its path. korvet itself must not be imported from an archive."""
    package = Path(korvet.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in MODULES:
            archive.write(package / module, f"korvet/{module}")
        for part in PARTS:
            for source in sorted((package / part).rglob("*")):
                inner = Path("korvet", part, source.relative_to(package / part))
                if source.is_file() and "__pycache__" not in inner.parts and source.suffix not in SOURCES:
                    archive.write(source, str(inner))
        if (package.parent / FORMAT_MODULE).is_file():
            archive.write(package.parent / FORMAT_MODULE, FORMAT_MODULE)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{write_bundle(Path(sys.argv[1] if len(sys.argv) > 1 else 'korvet.zip'))}\n")

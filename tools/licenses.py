"""Prints the licences of all packages of the Python that runs it, and their texts: for images.

    python tools/licenses.py > LICENSES.txt

Fails if a package names no licence. Uses only the standard library.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

_FILE: Final = re.compile(r"\.dist-info/.*(LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*$", re.IGNORECASE)
_RULE: Final = "=" * 80


def main() -> None:
    """Print the table and the texts."""
    packages = sorted(distributions(), key=lambda package: package.name.lower())
    print("Packages of Python here, and their licences. The package index has the sources of each.\n")  # noqa: T201
    for package in packages:
        print(f"{package.name} {package.version}: {licence_of(package)}")  # noqa: T201
    for package in packages:
        for file in package.files or ():
            if _FILE.search(str(file)):
                text = Path(str(file.locate())).read_text("utf-8", "replace")
                print(f"\n{_RULE}\n{package.name}: {Path(file).name}\n{_RULE}\n{text}")  # noqa: T201


def licence_of(package: Distribution) -> str:
    """Returns what the metadata name: an SPDX expression, else classifiers, else a name."""
    metadata = package.metadata
    classifiers = metadata.get_all("Classifier") or ()
    classes = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    names = [name.partition("\n")[0] for name in metadata.get_all("License") or ()]
    found = " or ".join(metadata.get_all("License-Expression") or classes or names)
    if not found:
        sys.exit(f"licenses: {package.name} names no licence")
    return found


if __name__ == "__main__":
    main()

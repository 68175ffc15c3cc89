"""Folders on any of Hadoop's file systems (local disks, HDFS, object stores), through Spark's driver."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from korvet.spark.session.driver_calls import call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Folder:
    """A path on the file systems of a session. Every method raises DriverError if the file system fails."""

    spark: SparkSession
    location: str

    @classmethod
    def of_uri(cls, spark: SparkSession, uri: str) -> Folder:
        """Return the folder of an escaped URI, as in DataFrame.inputFiles; its location is as in `files`."""
        return cls(spark, str(cls(spark, uri)._call("unescape")))

    def child(self, name: str) -> Folder:
        """Return the path of that name in this folder, whether it exists or not."""
        return Folder(self.spark, f"{self.location.rstrip('/')}/{name}")

    def scratch(self) -> Folder:
        """Return an unused hidden path in the same parent folder."""
        parent, slash, name = self.location.rstrip("/").rpartition("/")
        return Folder(self.spark, f"{parent}{slash}.{name}.{uuid.uuid4().hex[:12]}")

    def exists(self) -> bool:
        """Return whether a file or folder with this path exists."""
        return bool(self._call("exists"))

    def delete(self) -> None:
        """Delete the folder and its content. Does nothing if it doesn't exist."""
        self._call("delete")

    def rename(self, target: Folder) -> None:
        """Move the folder to an unused path. Raises FileExistsError if it is used, OSError if the move fails.

        A move within one file system is atomic. Object stores copy.
        """
        if target.exists():
            raise FileExistsError(f"{target.location} exists")
        if not self._call("rename", target=target.location):
            raise OSError(f"{self.location} could not be renamed to {target.location}")

    def read_text(self) -> str:
        """Return the content of a small file."""
        return str(self._call("read"))

    def write_text(self, text: str) -> None:
        """Create a small file atomically. Raises FileExistsError if it exists, OSError on failure."""
        if not self._call("create", scratch=self.scratch().location, text=text):
            if self.exists():
                raise FileExistsError(f"{self.location} exists")
            raise OSError(f"{self.location} could not be created")

    def files(self) -> Iterator[str]:
        """Yield the URIs of the files in the folder that are not hidden, at any depth."""
        for uri, inner in self._call("list"):
            if not any(map(_is_hidden, inner.strip("/").split("/"))):
                yield uri

    def qualified(self) -> str:
        """Return the absolute path with its scheme."""
        return str(self._call("qualify"))

    def local_path(self) -> str | None:
        """Return the path on a local disk of the driver; None on another file system."""
        scheme, _, path = self.qualified().partition(":")
        return path if scheme == "file" else None

    def _call(self, action: str, **more: Any) -> Any:
        return call(self.spark, "file", action=action, path=self.location, **more)


def _is_hidden(name: str) -> bool:
    """Whether Spark, like most readers of folders, skips a file of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)

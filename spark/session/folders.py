"""Folders on any of Hadoop's file systems (local disks, HDFS, object stores), through Spark's JVM."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Folder:
    """A path on the file systems of a session. Java's exceptions are raised as Py4JJavaError."""

    spark: SparkSession
    location: str

    @classmethod
    def of_uri(cls, spark: SparkSession, uri: str) -> Folder:
        """Return the folder of an escaped URI, as in DataFrame.inputFiles; its location is as in `files`."""
        jvm: Any = spark._jvm
        folder = cls(spark, str(jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(uri)).toString()))
        return cls(spark, str(folder._system.makeQualified(folder._path).toString()))

    def child(self, name: str) -> Folder:
        """Return the path of that name in this folder, whether it exists or not."""
        return Folder(self.spark, f"{self.location.rstrip('/')}/{name}")

    def scratch(self) -> Folder:
        """Return an unused hidden path in the same parent folder."""
        path = self._path
        name = f".{path.getName()}.{uuid.uuid4().hex[:12]}"
        return Folder(self.spark, str(self._jvm.org.apache.hadoop.fs.Path(path.getParent(), name).toString()))

    def exists(self) -> bool:
        """Return whether a file or folder with this path exists."""
        return bool(self._system.exists(self._path))

    def delete(self) -> None:
        """Delete the folder and its content. Does nothing if it doesn't exist."""
        self._system.delete(self._path, True)

    def rename(self, target: Folder) -> None:
        """Move the folder to an unused path. Raises FileExistsError if it is used, OSError if the move fails.

        A move within one file system is atomic. Object stores copy.
        """
        if target.exists():
            raise FileExistsError(f"{target.location} exists")
        if not self._system.rename(self._path, target._path):
            raise OSError(f"{self.location} could not be renamed to {target.location}")

    def read_text(self) -> str:
        """Return the content of a small file."""
        stream = self._system.open(self._path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, text: str) -> None:
        """Create a small file atomically. Raises FileExistsError if it exists, OSError on failure."""
        scratch = self.scratch()
        stream = self._system.create(scratch._path)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        scratch.rename(self)

    def files(self) -> Iterator[str]:
        """Yield the URIs of the files in the folder that are not hidden, at any depth."""
        system, root = self._system, self._path
        if not system.exists(root):
            return
        base = system.makeQualified(root).toString()
        listed = system.listFiles(root, True)
        while listed.hasNext():
            uri = str(listed.next().getPath().toString())
            inner = uri.removeprefix(str(base)).strip("/").split("/")
            if not any(map(_is_hidden, inner)):
                yield uri

    def local_path(self) -> str | None:
        """Return the path on a local disk; None on another file system."""
        path = self._system.makeQualified(self._path).toUri()
        return str(path.getPath()) if path.getScheme() == "file" else None

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm

    @property
    def _path(self) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.location)

    @property
    def _system(self) -> Any:
        session: Any = self.spark._jsparkSession
        return self._path.getFileSystem(session.sessionState().newHadoopConf())


def _is_hidden(name: str) -> bool:
    """Whether Spark, like most readers of folders, skips a file of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)

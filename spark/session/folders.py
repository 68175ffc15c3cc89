"""Folders wherever Hadoop's file systems reach (local disks, HDFS, object stores), through Spark's JVM."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Folder:
    """A path and the session whose file systems know it. Java's exceptions come as Py4JJavaError."""

    spark: SparkSession
    location: str

    @classmethod
    def of_uri(cls, spark: SparkSession, uri: str) -> Folder:
        """By a URI with escapes, as Spark names the files of a frame; `location` is as `files` gives it."""
        jvm: Any = spark._jvm
        folder = cls(spark, str(jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(uri)).toString()))
        return cls(spark, str(folder._system.makeQualified(folder._path).toString()))

    def child(self, name: str) -> Folder:
        """What lies in it by that name, there or not."""
        return Folder(self.spark, f"{self.location.rstrip('/')}/{name}")

    def scratch(self) -> Folder:
        """A hidden path beside it that nobody uses."""
        path = self._path
        name = f".{path.getName()}.{uuid.uuid4().hex[:12]}"
        return Folder(self.spark, str(self._jvm.org.apache.hadoop.fs.Path(path.getParent(), name).toString()))

    def exists(self) -> bool:
        """Whether there is a file or a folder of this name."""
        return bool(self._system.exists(self._path))

    def delete(self) -> None:
        """Remove it with all that is in it; nothing happens when it is not there."""
        self._system.delete(self._path, True)

    def rename(self, target: Folder) -> None:
        """Move it to a path that is free. Raises FileExistsError when it is not, OSError when it fails.

        One step on file systems, as long as both are on one; object stores copy.
        """
        if target.exists():
            raise FileExistsError(f"{target.location} exists")
        if not self._system.rename(self._path, target._path):
            raise OSError(f"{self.location} could not be renamed to {target.location}")

    def read_text(self) -> str:
        """The content of a small file."""
        stream = self._system.open(self._path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_text(self, text: str) -> None:
        """Make a small file that is never there in part; OSError when there is one."""
        scratch = self.scratch()
        stream = self._system.create(scratch._path)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        scratch.rename(self)

    def files(self) -> Iterator[str]:
        """The URIs of the files below it that readers see, at any depth."""
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
        """Its path on this machine's disks; None when it is elsewhere."""
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
    """What Spark, and most readers of folders of files, pass over."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)

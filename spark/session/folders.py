"""Folders on any of Hadoop's file systems (local disks, HDFS, object stores), through Spark's driver."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from korvet.spark.session.driver_calls import DriverError, in_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from korvet.spark.session.driver_calls import Calls

    # Calls of the file system (org.apache.hadoop.fs.FileSystem), with the path.
    Work = Callable[[Calls, Any, Any], Any]

_FILES: Final = "org.apache.hadoop.fs"
_ITERATORS: Final = "org.apache.hadoop.util.functional.RemoteIterators"
_STRINGS: Final = "org.apache.commons.lang3.StringUtils"
_STREAMS: Final = "org.apache.commons.io.IOUtils"
_UTF_8: Final = "UTF-8"
# A listing fails if a file vanishes meanwhile: the tasks of a query that was stopped delete theirs.
_MOST_LISTINGS: Final = 5


@dataclass(frozen=True, slots=True)
class Folder:
    """A path on the file systems of a session. Every method raises DriverError if the file system fails."""

    spark: SparkSession
    location: str

    @classmethod
    def of_uri(cls, spark: SparkSession, uri: str) -> Folder:
        """Return the folder of an escaped URI, as in DataFrame.inputFiles; its location is as in `files`."""

        def qualified(calls: Calls) -> Any:
            path = calls.new(f"{_FILES}.Path", calls.new("java.net.URI", uri))
            return _system(calls, path).makeQualified(path).toString()

        return cls(spark, in_driver(spark, qualified))

    def child(self, name: str) -> Folder:
        """Return the path of that name in this folder, whether it exists or not."""
        return Folder(self.spark, f"{self.location.rstrip('/')}/{name}")

    def scratch(self) -> Folder:
        """Return an unused hidden path in the same parent folder."""
        parent, slash, name = self.location.rstrip("/").rpartition("/")
        return Folder(self.spark, f"{parent}{slash}.{name}.{uuid.uuid4().hex[:12]}")

    def exists(self) -> bool:
        """Return whether a file or folder with this path exists."""
        return bool(self._run(lambda _, system, path: system.exists(path)))

    def delete(self) -> None:
        """Delete the folder and its content. Does nothing if it doesn't exist."""
        self._run(lambda _, system, path: system.delete(path, True))

    def rename(self, target: Folder) -> None:
        """Move the folder to an unused path. Raises FileExistsError if it is used, OSError if the move fails.

        A move within one file system is atomic. Object stores copy.
        """

        def rename(calls: Calls, system: Any, path: Any) -> Any:
            return system.rename(path, calls.new(f"{_FILES}.Path", target.location))

        if target.exists() or not self._run(rename):
            if target.exists():
                raise FileExistsError(f"{target.location} exists")
            raise OSError(f"{self.location} could not be renamed to {target.location}")

    def read_text(self) -> str:
        """Return the content of a small file."""

        def read(calls: Calls, system: Any, path: Any) -> Any:
            stream = system.open(path)
            calls.at_the_end(stream.close)
            return calls.static(_STREAMS, "toString", stream, _UTF_8)

        return str(self._run(read))

    def write_text(self, text: str) -> None:
        """Create a small file atomically. Raises FileExistsError if it exists, OSError on failure."""

        def write(calls: Calls, system: Any, path: Any) -> Any:
            stream = system.create(path)
            calls.at_the_end(stream.close)
            return calls.static(_STREAMS, "write", text, stream, _UTF_8)

        scratch = self.scratch()
        scratch._run(write)
        try:
            scratch.rename(self)
        except OSError:
            scratch.delete()
            raise

    def files(self) -> Iterator[str]:
        """Yield the URIs of the files in the folder that are not hidden, at any depth."""

        def listing(calls: Calls, system: Any, path: Any) -> Any:
            found = calls.static(_ITERATORS, "toList", system.listFiles(path, True))
            # Py4J passes an array only for a parameter of exactly its class.
            kind = calls.static("java.lang.Class", "forName", f"[L{_FILES}.FileStatus;")
            statuses = calls.static("java.util.Arrays", "copyOf", found.toArray(), found.size(), kind)
            paths = calls.new("java.util.ArrayList")
            paths.add(system.makeQualified(path).toString())
            inner = calls.static(f"{_FILES}.FileUtil", "stat2Paths", statuses)
            paths.add(calls.static("scala.runtime.ScalaRunTime", "genericWrapArray", inner).mkString("\0"))
            return calls.static(_STRINGS, "join", paths, "\0")

        if not self.exists():
            return
        for left in reversed(range(_MOST_LISTINGS)):
            try:
                root, *uris = self._run(listing).split("\0")
                break
            except DriverError:
                if not left:
                    raise
        for uri in filter(None, uris):
            if not any(map(_is_hidden, uri.removeprefix(root).strip("/").split("/"))):
                yield uri

    def qualified(self) -> str:
        """Return the absolute path with its scheme."""
        return str(self._run(lambda _, system, path: system.makeQualified(path).toString()))

    def local_path(self) -> str | None:
        """Return the path on a local disk of the driver; None on another file system."""
        scheme, _, path = self.qualified().partition(":")
        return path if scheme == "file" else None

    def _run(self, work: Work) -> Any:
        def on_system(calls: Calls) -> Any:
            path = calls.new(f"{_FILES}.Path", self.location)
            return work(calls, _system(calls, path), path)

        return in_driver(self.spark, on_system)


def _system(calls: Calls, path: Any) -> Any:
    """The file system of a path, with the settings of the session."""
    return path.getFileSystem(calls.session.sessionState().newHadoopConf())


def _is_hidden(name: str) -> bool:
    """Whether Spark, like most readers of folders, skips a file of this name."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)

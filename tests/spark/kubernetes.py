"""A stand-in for Kubernetes: the part of its API that Spark uses, and pods as processes of this machine.

A pod starts when it and its config maps exist, with the arguments and variables of its container, by the
entry point of korvet's image. Its volumes are folders, and paths below their mount points lead there. The
names of services lead to this machine. Images and limits are only recorded.
"""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.processes import Child

ENTRYPOINT = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "spark-entrypoint.sh"
_SERVICE = re.compile(r"[\w-]+\.default\.svc")
_LISTS = {
    "pods": "PodList",
    "configmaps": "ConfigMapList",
    "services": "ServiceList",
    "persistentvolumeclaims": "PersistentVolumeClaimList",
}
Files = Mapping[str, str]


class Kubernetes:
    """The API on loopback."""

    def __init__(
        self, folder: Path, environ: Mapping[str, str], secrets: Mapping[str, Files], paths: Mapping[str, str]
    ) -> None:
        """environ: variables of the image. paths: of the image, and where they are on this machine."""
        self._folder, self._environ, self._secrets, self._paths = folder, dict(environ), secrets, paths
        self._objects: dict[str, dict[str, Any]] = {}
        self._lock = threading.RLock()
        self.pods: list[dict[str, Any]] = []
        """All pods that were ever created."""
        self.processes: dict[str, Child] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else {}
                status, document = api.handle(self.command, self.path, body)
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815 (names of http.server)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop the pods and the API."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for process in self.processes.values():
            process.terminate()

    def pods_of(self, role: str) -> list[dict[str, Any]]:
        """The pods of drivers or executors."""
        with self._lock:
            return [pod for pod in self.pods if pod["metadata"]["labels"].get("spark-role") == role]

    def handle(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Answer one request: the status, and a document."""
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        with self._lock:
            if method == "GET":
                return self._read(parts.path, query)
            if method == "DELETE":
                one = [parts.path] if parts.path in self._objects else []
                for place in one or self._selected(parts.path, query):
                    self._delete(place)
                return 200, _status("Success", 200)
            if method == "POST":
                name = body["metadata"].get("name") or f"generated-{uuid.uuid4()}"
                return 201, self._created(f"{parts.path}/{name}", name, body)
            known = self._objects.get(parts.path)
            if known is None:
                return 201, self._created(parts.path, parts.path.rpartition("/")[2], body)
            known["metadata"] |= body.get("metadata", {})
            return 200, known

    def _read(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if path in self._objects:
            return 200, self._objects[path]
        kind = _LISTS.get(path.rpartition("/")[2])
        if kind is None:
            return 404, _status("Failure", 404)
        items = [self._objects[place] for place in self._selected(path, query)]
        return 200, {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}

    def _selected(self, collection: str, query: Mapping[str, list[str]]) -> list[str]:
        """The places of the objects in a collection that match the selectors of a query."""
        labels, fields = _selector(query, "labelSelector"), _selector(query, "fieldSelector")
        return [
            place
            for place, each in self._objects.items()
            if place.rpartition("/")[0] == collection
            and labels.items() <= each["metadata"].get("labels", {}).items()
            and fields.get("metadata.name") in {None, each["metadata"]["name"]}
        ]

    def _created(self, place: str, name: str, document: dict[str, Any]) -> dict[str, Any]:
        document["metadata"] |= {"name": name, "uid": str(uuid.uuid4()), "resourceVersion": "1"}
        document["metadata"].setdefault("namespace", "default")
        self._objects[place] = document
        if document["kind"] == "Pod":
            document["status"] = {
                "phase": "Running",
                "podIP": "127.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [],
            }
            self.pods.append(document)
        self._start_pods()
        return document

    def _delete(self, place: str) -> None:
        document = self._objects.pop(place)
        process = self.processes.get(document["metadata"]["name"])
        if document["kind"] == "Pod" and process is not None:
            process.terminate()

    def _start_pods(self) -> None:
        """Start the pods whose config maps exist."""
        maps = {
            each["metadata"]["name"]: each for each in self._objects.values() if each["kind"] == "ConfigMap"
        }
        for pod in self.pods:
            name = pod["metadata"]["name"]
            volumes = {each["name"]: each for each in pod["spec"].get("volumes", [])}
            needed = {each["configMap"]["name"] for each in volumes.values() if "configMap" in each}
            if name not in self.processes and needed <= maps.keys():
                self.processes[name] = self._process(pod, volumes, maps)

    def _process(self, pod: dict[str, Any], volumes: Mapping[str, Any], maps: Mapping[str, Any]) -> Child:
        home = self._folder / pod["metadata"]["name"]
        container = pod["spec"]["containers"][0]
        mounts = {each["mountPath"]: home / each["name"] for each in container.get("volumeMounts", [])}
        paths = {**self._paths, **{path: str(place) for path, place in mounts.items()}}

        def moved(text: str) -> str:
            for path, place in paths.items():
                text = text.replace(path, place)
            return _SERVICE.sub("127.0.0.1", text)

        for mount in container.get("volumeMounts", []):
            place = mounts[mount["mountPath"]]
            place.mkdir(parents=True)
            for file, text in self._files(volumes[mount["name"]], maps).items():
                (place / file).write_text(moved(text))
        environ = {each["name"]: moved(_value(each, pod)) for each in container.get("env", [])}
        command = [str(ENTRYPOINT), *map(moved, container["args"])]
        return Child(command, home / "log", {**self._environ, **environ})

    def _files(self, volume: Mapping[str, Any], maps: Mapping[str, Any]) -> Files:
        if "configMap" in volume:
            found: Files = maps[volume["configMap"]["name"]].get("data", {})
            return found
        if "secret" in volume:
            return self._secrets[volume["secret"]["secretName"]]
        return {}


def _status(text: str, code: int) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": text, "code": code}


def _selector(query: Mapping[str, list[str]], name: str) -> dict[str, str]:
    """The equalities of a selector: "a=b,c=d"."""
    words = [word for text in query.get(name, []) for word in text.split(",")]
    return {key: value for key, is_equal, value in (word.partition("=") for word in words) if is_equal}


def _value(variable: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """The value of a variable; that of a field for the fields that Spark uses."""
    if "value" in variable:
        return str(variable["value"])
    fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
    return fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]


def environment(home: Path) -> dict[str, str]:
    """The variables of korvet's image. home: of Spark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {**kept, "SPARK_HOME": str(home)}

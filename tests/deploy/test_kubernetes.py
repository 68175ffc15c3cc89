"""Checks the manifests of deploy/kubernetes against the settings, pages and images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from korvet.config.keys import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"


def pods(file: str) -> Iterator[dict[str, Any]]:
    """The specifications of all pods of a manifest, those of templates in a ConfigMap too."""
    for document in yaml.safe_load_all((FOLDER / file).read_text()):
        if document["kind"] == "ConfigMap":
            yield from (yaml.safe_load(text)["spec"] for text in document["data"].values())
            continue
        spec = document.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield spec["template"]["spec"]


@pytest.mark.parametrize(("file", "count"), [("korvet.yaml", 1), ("spark.yaml", 2)])
def test_pods_have_no_rights(file: str, count: int) -> None:
    """What the level `restricted` of Kubernetes' pod security standards asks for, as the image's user."""
    found = list(pods(file))
    assert len(found) == count
    user = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001}
    for pod in found:
        assert pod["securityContext"].items() >= user.items()
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]})


def test_brokers_are_spread_limited_and_write_no_files() -> None:
    (pod,) = pods("korvet.yaml")
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]
    documents = list(yaml.safe_load_all((FOLDER / "korvet.yaml").read_text()))
    of_kind = {document["kind"]: document for document in documents}
    template = of_kind["StatefulSet"]["spec"]["template"]
    selectors = [each["labelSelector"] for each in pod["topologySpreadConstraints"]]
    selectors += [of_kind[kind]["spec"]["selector"] for kind in ("StatefulSet", "PodDisruptionBudget")]
    assert [each["matchLabels"] for each in selectors] == [template["metadata"]["labels"]] * 4


def test_the_pods_of_kubernetes_have_settings_and_probes_that_exist() -> None:
    documents = list(yaml.safe_load_all((FOLDER / "korvet.yaml").read_text()))
    of_kind = {document["kind"]: document for document in documents}
    (container,) = of_kind["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    given = {variable["name"]: variable.get("value") for variable in container["env"]}
    known = {setting.variable for setting in settings()}
    assert {name for name in given if name.startswith("KORVET_")} <= known
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert given["KORVET_ADMIN_LISTEN"] == f"0.0.0.0:{ports['admin']}"
    assert given["KORVET_LISTEN"] == f"0.0.0.0:{ports['kafka']}"
    probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    (endpoint,) = of_kind["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert {probe["port"] for probe in probes.values()} == {endpoint["port"]} == {"admin"}
    (mounted,) = container["volumeMounts"]
    credentials = endpoint["authorization"]["credentials"]
    assert given["KORVET_ADMIN_TOKEN_LOCATION"] == f"{mounted['mountPath']}/{credentials['key']}"

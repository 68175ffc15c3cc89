"""Checks the Helm chart and the manifests of Spark against Kubernetes' schemas, the settings and the images.

`helm` renders the chart without a cluster. If it is not on PATH, Go builds it, which takes minutes of CPU.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from korvet.config.keys import settings
from tests.support.go import installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# The first test may build helm.
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "korvet"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
SPARK = ROOT / "deploy" / "kubernetes" / "spark.yaml"
OLDEST, NEWEST = "1.28.0", "1.37.0"
# Kubernetes has no schema for it: it is a resource of the Prometheus Operator.
FOREIGN = {"ServiceMonitor"}
EMBEDDED: dict[str, Any] = {"replicaCount": 1, "embedded": {"enabled": True, "storageClassName": "fast"}}
FULL: dict[str, Any] = {
    "image": {"tag": "0.2.0", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "redis": {"urlSecret": "store"},
    "settings": {
        "log.retention.ms": 604_800_000,
        "log.retention.memory.ratio": 0.8,
        "acks.all.fsync": True,
        "log_level": "debug",
        "drain.wait.ms": 20_000,
    },
    "env": [{"name": "KORVET_SSL_KEYSTORE_LOCATION", "value": "/run/secrets/tls/broker.pem"}],
    "volumes": [{"name": "tls", "secret": {"secretName": "broker"}}],
    "volumeMounts": [{"name": "tls", "mountPath": "/run/secrets/tls", "readOnly": True}],
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True, "clients": [{"namespaceSelector": {}}]},
    "podAnnotations": {"note": "kept"},
    "podLabels": {"team": "streams"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "streams", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
}
CASES: dict[str, dict[str, Any]] = {"default": {}, "full": FULL, "embedded": EMBEDDED}


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm, with values as a file."""
    program = shutil.which("helm") or installed(HELM)
    command = [program, *arguments] + ([] if values is None else ["--values", "-"])
    text = None if values is None else yaml.safe_dump(dict(values))
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)


def template(
    values: Mapping[str, Any], *options: str, release: str = "log", chart: str = str(CHART)
) -> subprocess.CompletedProcess[str]:
    place = ("--namespace", "prod", "--kube-version", NEWEST)
    return helm("template", release, chart, *place, *options, values=values)


def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the resources of the chart."""
    done = template(values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(kind: str, documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def pods(documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The specifications of all pods, those of templates in a ConfigMap too."""
    for document in documents:
        if document["kind"] == "ConfigMap":
            yield from (yaml.safe_load(text)["spec"] for text in document["data"].values())
            continue
        spec = document.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield spec["template"]["spec"]


def container_of(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    (pod,) = pods(documents)
    (container,) = pod["containers"]
    assert isinstance(container, dict)
    return container


def variables(documents: Iterable[dict[str, Any]]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container_of(documents)["env"] if "value" in each}


def assert_no_rights(pod: dict[str, Any]) -> None:
    """What the level `restricted` of Kubernetes' pod security standards asks for, as the image's user."""
    user = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001}
    assert pod["securityContext"].items() >= user.items()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]})


@pytest.mark.long
def test_helm_lints_the_chart() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
@pytest.mark.long
def test_the_chart_has_valid_resources(values: dict[str, Any], version: str) -> None:
    documents = rendered(values)
    assert {"Service", "StatefulSet", "PodDisruptionBudget"} <= {each["kind"] for each in documents}
    for document in documents:
        if document["kind"] not in FOREIGN:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_manifests_of_spark_are_valid(version: str) -> None:
    documents = list(yaml.safe_load_all(SPARK.read_text()))
    assert len(documents) == 6
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)
    (template,) = of_kind("ConfigMap", documents)["data"].values()
    kubernetes_validate.validate(yaml.safe_load(template), version, strict=True)


@pytest.mark.long
def test_the_schemas_refuse_what_is_wrong() -> None:
    """The checker finds faults, so its silence in the other tests means something."""
    wrong = of_kind("StatefulSet", rendered({}))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
        ({"embedded": {"enabled": True}}, "replicaCount': value must be 1"),
        ({"redis": {"url": ""}}, "redis.url, redis.urlSecret or embedded.enabled is needed"),
        ({"settings": {"log": {"retention": 1}}}, "got object"),
        ({"embedded": {"storage": "10 GB"}}, "does not match pattern"),
        ({"admin": {"tokenSecret": ""}}, "minLength"),
    ],
)
@pytest.mark.long
def test_values_that_cannot_work_are_refused(values: dict[str, Any], reason: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_the_schema_names_exactly_the_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def agree(part: dict[str, Any], given: dict[str, Any]) -> None:
        # Helm adds `global` to the values of every chart.
        assert part["properties"].keys() - {"global", "claims"} == given.keys()
        for name, value in given.items():
            inner = part["properties"][name]
            if "properties" in inner:
                agree(inner, value)

    agree(schema, values)


@pytest.mark.long
def test_the_chart_has_the_version_of_korvet() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    assert chart["kubeVersion"] == f">={OLDEST}-0"
    assert container_of(rendered({}))["image"] == f"korvet:{project['version']}"
    assert container_of(rendered(FULL))["image"] == "korvet:0.2.0"


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
@pytest.mark.long
def test_brokers_have_no_rights(values: dict[str, Any]) -> None:
    (pod,) = pods(rendered(values))
    assert_no_rights(pod)
    assert not pod["automountServiceAccountToken"]
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in pod["containers"])


def test_the_pods_of_spark_have_no_rights() -> None:
    found = list(pods(yaml.safe_load_all(SPARK.read_text())))
    assert len(found) == 2
    for pod in found:
        assert_no_rights(pod)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
@pytest.mark.long
def test_all_select_the_brokers_of_their_release(values: dict[str, Any]) -> None:
    documents = rendered(values)
    template = of_kind("StatefulSet", documents)["spec"]["template"]
    of_release = {"app.kubernetes.io/name": "korvet", "app.kubernetes.io/instance": "log"}
    assert template["metadata"]["labels"].items() >= of_release.items()
    spread = template["spec"]["topologySpreadConstraints"]
    selectors = [each["labelSelector"]["matchLabels"] for each in spread]
    assert [each["topologyKey"] for each in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    for document in documents:
        spec = document["spec"]
        found = spec.get("podSelector") or spec["selector"]
        selectors.append(found.get("matchLabels", found))
    assert selectors == [of_release] * len(selectors)
    assert of_kind("Service", documents)["metadata"]["labels"].items() >= of_release.items()


@pytest.mark.long
def test_resources_are_limited() -> None:
    resources = container_of(rendered({}))["resources"]
    assert resources["requests"].keys() == {"cpu", "memory"}
    assert "memory" in resources["limits"]


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
@pytest.mark.long
def test_settings_ports_and_probes_exist(values: dict[str, Any]) -> None:
    documents = rendered(values)
    container, given = container_of(documents), variables(documents)
    known = {setting.variable for setting in settings()}
    names = {each["name"] for each in container["env"]}
    assert {name for name in names if name.startswith("KORVET_")} <= known
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert given["KORVET_LISTEN"] == f"0.0.0.0:{ports['kafka']}"
    assert given["KORVET_ADMIN_LISTEN"] == f"0.0.0.0:{ports['admin']}"
    service = of_kind("Service", documents)["spec"]["ports"]
    assert {port["name"]: port["port"] for port in service} == ports
    assert given["KORVET_ADVERTISE"] == f"$(POD_NAME).log.prod.svc:{ports['kafka']}"
    probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
    assert {name: (probe["path"], probe["port"]) for name, probe in probes.items()} == {
        "startupProbe": ("/livez", "admin"),
        "livenessProbe": ("/livez", "admin"),
        "readinessProbe": ("/readyz", "admin"),
    }
    token = next(mount for mount in container["volumeMounts"] if mount["name"] == "admin-token")
    assert given["KORVET_ADMIN_TOKEN_LOCATION"] == f"{token['mountPath']}/token"


@pytest.mark.long
def test_settings_become_variables() -> None:
    given = variables(rendered(FULL))
    assert given["KORVET_LOG_RETENTION_MS"] == "604800000"
    assert given["KORVET_LOG_RETENTION_MEMORY_RATIO"] == "0.8"
    assert given["KORVET_ACKS_ALL_FSYNC"] == "true"
    assert given["KORVET_LOG_LEVEL"] == "debug"
    assert given["KORVET_DRAIN_WAIT_MS"] == "20000"


@pytest.mark.long
def test_a_redis_is_named_by_its_url_or_a_secret() -> None:
    assert variables(rendered({}))["KORVET_REDIS"] == "redis://redis:6379/0"
    (found,) = (each for each in container_of(rendered(FULL))["env"] if each["name"] == "KORVET_REDIS")
    assert found["valueFrom"] == {"secretKeyRef": {"name": "store", "key": "url"}}


@pytest.mark.long
def test_the_embedded_server_has_a_volume() -> None:
    documents = rendered(EMBEDDED)
    spec = of_kind("StatefulSet", documents)["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    mounts = {each["name"]: each["mountPath"] for each in container_of(documents)["volumeMounts"]}
    folder = Path(variables(documents)["KORVET_DATA_DIR"])
    assert folder.parent == Path(mounts[claim["metadata"]["name"]])
    assert "KORVET_REDIS" not in variables(documents)
    assert spec["replicas"] == 1
    assert "volumeClaimTemplates" not in of_kind("StatefulSet", rendered({}))["spec"]


@pytest.mark.long
def test_prometheus_scrapes_the_service_as_the_job_that_rules_expect() -> None:
    documents = rendered(FULL)
    monitor, service = of_kind("ServiceMonitor", documents), of_kind("Service", documents)
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "korvet"
    (secret,) = (each for each in next(pods(documents))["volumes"] if each["name"] == "admin-token")
    credentials = endpoint["authorization"]["credentials"]
    assert credentials == {"name": secret["secret"]["secretName"], "key": "token"}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.long
def test_a_policy_admits_only_who_is_named() -> None:
    policy = of_kind("NetworkPolicy", rendered(FULL))["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]} == {
        "kafka": [{"namespaceSelector": {}}],
        "admin": [{"podSelector": {}}],
    }
    alone = {"networkPolicy": {"enabled": True, "monitors": []}}
    (rule,) = of_kind("NetworkPolicy", rendered(alone))["spec"]["ingress"]
    assert rule["ports"] == [{"port": "kafka"}]


@pytest.mark.long
def test_the_commands_of_the_guide_render() -> None:
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text().replace("\\\n", " ")
    commands = [
        shlex.split(line) for line in re.findall(r"^helm (?:install|upgrade) .*", guide, re.MULTILINE)
    ]
    assert len(commands) >= 2
    (values,) = re.findall(r"```yaml\n# values\.yaml\n(.*?)```", guide, re.DOTALL)
    for _, _, release, chart, *options in commands:
        assert ROOT / chart == CHART
        others = [option for option in options if option not in ("--values", "values.yaml")]
        done = template(yaml.safe_load(values) if "--values" in options else {}, *others, release=release)
        assert done.returncode == 0, done.stderr

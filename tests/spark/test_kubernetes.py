"""The recipe for Kubernetes: the documented command, the manifest, and the entry point of the image."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml

import korvet
from korvet.spark.session.jars import DELTA, SETTINGS
from korvet.spark.submit import main as program
from tests.spark.kubernetes import ENTRYPOINT, Kubernetes, environment
from tests.support.certificates import Authority
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.processes import run
from tests.support.spark_cluster import HOME, QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = "/opt/korvet/lib/python3.12/site-packages/korvet"
MS = 1_700_000_000_000
DEADLINE_S = 240


def documented() -> list[str]:
    """The words of the documented command."""
    section = (ROOT / "docs" / "guides" / "spark-cluster.md").read_text()
    (block,) = re.findall(r"^spark-submit --master k8s.*?(?=\n```)", section, re.MULTILINE | re.DOTALL)
    return shlex.split(block.replace("\\\n", " "))


def manifest() -> dict[str, dict[str, Any]]:
    """The documents of the manifest by kind."""
    text = (ROOT / "deploy" / "kubernetes" / "spark.yaml").read_text()
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def check_korvet_options(words: list[str]) -> None:
    """Raises click's error for a command or option that korvet doesn't have."""
    command: click.Command = program
    context = program.make_context("korvet", [*words])
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
        # click caches the help option of a command's first context, which depends on the parent.
        context = command.make_context(name, [*words], parent=context)


def settings_of(words: list[str]) -> dict[str, str]:
    """The --conf options of a command of spark-submit."""
    return dict(value.split("=", 1) for name, value in pairwise(words) if name == "--conf")


def test_the_manifest_agrees_with_itself_and_with_korvet() -> None:
    found = manifest()
    account = found["ServiceAccount"]["metadata"]["name"]
    assert found["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert found["RoleBinding"]["roleRef"]["name"] == found["Role"]["metadata"]["name"]
    pod = found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account
    (driver,) = pod["containers"]
    words = driver["args"]
    settings = settings_of(words)
    assert settings["spark.kubernetes.container.image"] == driver["image"]
    assert SETTINGS[DELTA].items() <= settings.items()
    named = {variable["name"] for variable in driver["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(words))) <= named
    # Executors see the secret and the tables where the driver sees them.
    folder, _, file = settings["spark.kubernetes.executor.podTemplateFile"].rpartition("/")
    executor = yaml.safe_load(found["ConfigMap"]["data"][file])["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in driver["volumeMounts"]}
    assert mounted.pop(folder)["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in executor["volumes"]}
    assert {
        mount["mountPath"]: volumes[mount["name"]] for mount in executor["containers"][0]["volumeMounts"]
    } == mounted
    assert executor["securityContext"] == pod["securityContext"]
    at = next(number for number, word in enumerate(words) if word.endswith("spark/submit.py"))
    assert words[at] == f"{INSTALLED}/spark/submit.py"
    arguments = words[at + 1 :]
    check_korvet_options(arguments)
    given = dict(pairwise(arguments))
    assert any(given["--to"].startswith(f"{path}/") for path in mounted)
    assert given["--redis-password-file"].rpartition("/")[0] in mounted


def test_the_documented_command_has_options_that_exist() -> None:
    words = documented()
    at = words.index(f"local://{INSTALLED}/spark/submit.py")
    check_korvet_options(words[at + 1 :])
    settings = settings_of(words[:at])
    secrets = {value for name, value in settings.items() if ".secrets." in name}
    given = dict(pairwise(words))
    assert {given["--redis-password-file"].rpartition("/")[0]} == secrets
    image = settings["spark.kubernetes.container.image"]
    assert f"--tag {image} " in (ROOT / "docs" / "guides" / "spark-cluster.md").read_text()
    assert (
        image
        == manifest()["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"]
    )


@pytest.fixture
def shown(tmp_path: Path) -> dict[str, str]:
    """An environment whose Java and spark-submit print their arguments, one per line."""
    for name in ("bin/java", "spark/bin/spark-submit"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        path.chmod(0o755)
    return {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(tmp_path),
        "SPARK_HOME": str(tmp_path / "spark"),
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7",
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd",
        "SPARK_EXECUTOR_MEMORY": "600m",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "exec-3",
    }


def started(environ: dict[str, str], *arguments: str) -> list[str]:
    done = subprocess.run([ENTRYPOINT, *arguments], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_entry_point(shown: dict[str, str]) -> None:
    driver = started(shown, "driver", "--properties-file", "/p", "local:///a.py", "one two")
    assert driver[:2] == ["--deploy-mode", "client"]
    assert "spark.driver.bindAddress=10.0.0.7" in driver
    assert driver[-4:] == ["--properties-file", "/p", "local:///a.py", "one two"]
    executor = started(shown, "executor")
    assert executor[:4] == ["-Da=b c", "-Dd", "-Xms600m", "-Xmx600m"]
    options = dict(pairwise(executor))
    assert (options["--executor-id"], options["--podName"]) == ("3", "exec-3")
    assert started(shown, "echo", "as it is") == ["as it is"]
    del shown["SPARK_DRIVER_URL"]
    with pytest.raises(subprocess.CalledProcessError):
        started(shown, "executor")


@pytest.mark.spark
@pytest.mark.long
def test_the_documented_command_runs(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    """spark-submit, the driver and two executors, with a stand-in for the API of Kubernetes."""
    keyspace.topic("t", 4)
    keyspace.offsets_topic()
    for number in range(400):
        keyspace.add("t", number % 4, f"{MS}-{number}", b"value", b"%d" % number)
    keyspace.commit("g", "t", 0, MS << 10, at_ms=MS + 5)
    keyspace.client.execute_command("ACL", "SETUSER", "default", "resetpass", ">secret")
    token = tmp_path / "token"
    token.write_text("token")
    out = tmp_path / "status"
    environ = {**environment(HOME), "PYTHONPATH": str(Path(korvet.__file__).parents[1])}
    paths = {INSTALLED: str(Path(korvet.__file__).parent)}
    cluster = Kubernetes(tmp_path / "pods", environ, {"korvet-redis": {"password": "secret"}}, paths)
    try:
        words = documented()
        replaced = {"--master": f"k8s://{cluster.url}", "--redis": keyspace.url, "--to": str(out)}
        for name, value in replaced.items():
            words[words.index(name) + 1] = value
        more = {
            "spark.kubernetes.driver.master": cluster.url,
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.executor.enableApiWatcher": "false",
            "spark.kubernetes.authenticate.driver.mounted.oauthTokenFile": str(token),
            "spark.kubernetes.authenticate.driver.mounted.caCertFile": str(Authority(tmp_path).certificate),
            "spark.pyspark.python": sys.executable,
            "spark.driver.port": str(free_port()),
            "spark.driver.blockManager.port": str(free_port()),
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        options = [word for name, value in more.items() for word in ("--conf", f"{name}={value}")]
        submit = [str(HOME / "bin" / "spark-submit"), *options, *words[1:]]
        done = run(submit, DEADLINE_S, env=environ)
        assert done.returncode == 0, done.stdout.decode()[-2000:] + done.stderr.decode()[-4000:]
        (driver,) = cluster.pods_of("driver")
        process = until(
            lambda: cluster.processes.get(driver["metadata"]["name"]), DEADLINE_S, "the driver starts"
        )
        until(lambda: not process.running, DEADLINE_S, "the driver ends")
        assert process.exit_code == 0, process.output()[-4000:]
        assert len(cluster.pods_of("executor")) == 2
    finally:
        cluster.close()
        keyspace.client.execute_command("ACL", "SETUSER", "default", "nopass")
    found = spark.read.parquet(str(out)).collect()
    assert [(row["group"], row["record_lag"]) for row in found] == [("g", 100)]

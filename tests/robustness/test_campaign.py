"""Reports, and runs of many seeds: what stays, what is repeated, and what the command line returns."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from robustness import history, plan, report
from robustness.campaign import Passed, run_plans, sources
from robustness.command import ROOT, main
from robustness.dice import Dice
from robustness.model_log import Model
from robustness.mutants import MUTATIONS
from robustness.simulation.__main__ import main as simulate
from robustness.story import Story
from tests.support.polling import patient

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from robustness.plan import Plan

DURATION_MS = 10_000
BROKEN = 3


class Runner:
    """Writes random correct histories, except for one seed, and knows what it ran."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def __call__(self, made: Plan, folder: Path) -> Path:
        self.ran.append(made.seed)
        path = folder / "history.jsonl"
        good = Story().sent("a", 5).end((5, "a"))
        bad = Story().sent("a", 5).end()
        history.write(path, (bad if made.seed == BROKEN else good).events)
        return path


def plans_of(seeds: Iterable[int]) -> list[Plan]:
    return [plan.make(seed, DURATION_MS) for seed in seeds]


def campaign(folder: Path, runner: Runner, seeds: Iterable[int]) -> list[int]:
    said: list[str] = []
    passed = Passed(folder, "sources", DURATION_MS)
    failed = run_plans(plans_of(seeds), runner, folder, passed, said.append)
    assert len(said) == 2 * len(runner.ran)
    return failed


def test_seeds_with_violations_keep_their_history(tmp_path: Path) -> None:
    runner = Runner()
    assert campaign(tmp_path, runner, range(1, 6)) == [BROKEN]
    assert runner.ran == [1, 2, 3, 4, 5]
    assert [path.parent.name for path in tmp_path.glob("*/history.jsonl")] == [f"seed-{BROKEN}"]
    assert len(list(tmp_path.glob("*/report.html"))) == 5


def test_only_seeds_that_have_not_passed_run_again(tmp_path: Path) -> None:
    campaign(tmp_path, Runner(), range(1, 6))
    runner = Runner()
    assert campaign(tmp_path, runner, range(1, 8)) == [BROKEN]
    assert runner.ran == [BROKEN, 6, 7]
    # The history of the first failure is kept.
    found = sorted(path.parent.name for path in tmp_path.glob("*/history.jsonl"))
    assert found == [f"seed-{BROKEN}", f"seed-{BROKEN}-failed-1"]


def test_other_sources_or_durations_start_from_the_first_seed(tmp_path: Path) -> None:
    campaign(tmp_path, Runner(), range(1, 3))
    for key, duration_ms, passed in (
        ("sources", DURATION_MS, [1, 2]),
        ("others", DURATION_MS, []),
        ("sources", DURATION_MS + 1, []),
    ):
        known = Passed(tmp_path, key, duration_ms)
        assert [seed for seed in range(1, 5) if seed in known] == passed
        total = known.total(range(1, 5))
        assert total["seeds without a violation"] == len(passed)
        assert total.get("records sent", 0) == len(passed)


def test_a_run_that_does_not_end_fails(tmp_path: Path) -> None:
    def run(made: Plan, folder: Path) -> Path:
        assert made.seed != 2, "broker-1 does not serve"
        return Runner()(made, folder)

    said: list[str] = []
    passed = Passed(tmp_path, "sources", DURATION_MS)
    assert run_plans(plans_of([1, 2]), run, tmp_path, passed, said.append) == [2]
    assert "broker-1 does not serve" in said[-1]


def test_sources_depend_on_contents_and_names(tmp_path: Path) -> None:
    file = tmp_path / "offsets" / "packing.py"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    before = sources(tmp_path)
    assert sources(tmp_path) == before
    file.write_text("a = 2\n")
    assert sources(tmp_path) != before


def test_the_command_runs_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--minutes", "0.2"], Runner(), tmp_path) == 0
    assert main(["--first", str(BROKEN), "--minutes", "0.2"], Runner(), tmp_path) == 1
    assert "unseen in t-0 at 5" in capsys.readouterr().out


def test_the_command_prints_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan-only", "--seeds", "2", "--first", "7", "--minutes", "0.5"]) == 0
    plans = [plan.describe(plan.make(seed, 30_000)) for seed in (7, 8)]
    assert capsys.readouterr().out == "\n".join([*plans, ""])


def test_the_command_checks_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, story, status in (
        ("good", Story().sent("a", 5).end((5, "a")), 0),
        ("bad", Story().sent("a", 5).end(), 1),
    ):
        path = tmp_path / f"{name}.jsonl"
        history.write(path, story.events)
        assert main(["--check", str(path)], None, tmp_path) == status
        assert f"{'no violation' if status == 0 else 'violations found'}" in capsys.readouterr().out
        assert (tmp_path / "checked" / name / "report.html").exists()


def test_histories_that_cannot_be_checked_have_not_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, damaged, cut = tmp_path / "good.jsonl", tmp_path / "damaged.jsonl", tmp_path / "cut.jsonl"
    history.write(good, Story().sent("a", 5).end((5, "a")).events)
    damaged.write_bytes(good.read_bytes()[:-9])
    history.write(cut, Story().sent("a", 5).events)
    assert (
        main(["--check", str(tmp_path / "missing"), str(damaged), str(cut), str(good)], None, tmp_path) == 1
    )
    said = capsys.readouterr().out
    for part in (
        "missing can't be checked",
        "damaged.jsonl:5: ",
        "before its final reads",
        "good/report.html",
    ):
        assert part in said


@pytest.mark.parametrize(
    "option", ["--seeds=0", "--seeds=-1", "--minutes=0", "--minutes=nan", "--minutes=inf", "--replica-lag=-1"]
)
def test_numbers_that_make_no_sense_are_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--plan-only", option], Runner(), tmp_path)
    assert refused.value.code == 2
    if option.startswith("--seeds"):
        with pytest.raises(SystemExit):
            simulate([option, f"--folder={tmp_path}"])


def test_the_command_needs_something_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "--check" in capsys.readouterr().err


class Page(HTMLParser):
    """Collects texts and references, and checks that nothing is loaded from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.references: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_report_shows_the_partition_around_a_violation() -> None:
    story = Story(seed=7, topology="pair", plan="<plan>").sent("a<b", 5).sent("b", 9).polled("c", (9, "b"))
    facts, violations = report.checked(story.end((9, "b")).events)
    text = report.as_text(facts, violations)
    for part in (
        "seed 7, pair: violations found",
        "lost write in t-0 at 5",
        "polled 9=b",
        "ok send a<b at 5",
    ):
        assert part in text
    page = Page(report.as_html(facts, violations))
    assert page.references == []
    assert {"lost write in t-0 at 5", "polled 9=b", "ok send a<b at 5 acks=-1", "<plan>"} <= set(page.texts)


@pytest.mark.parametrize("name", MUTATIONS)
def test_all_kinds_of_violations_can_be_reported(name: str) -> None:
    for seed in range(50):
        model = Model(Dice(seed))
        for _ in range(80):
            model.step()
        events = MUTATIONS[name][0](model.history(), Dice(seed))
        facts, violations = report.checked(events or model.events)
        text, page = report.as_text(facts, violations), Page(report.as_html(facts, violations))
        for violation in report.shown(violations):
            assert violation.message in text
            assert violation.message in page.texts


# A client library that waits without releasing the interpreter's lock.
HANGS = """
import ctypes, pathlib
from robustness import plan
from robustness.campaign import watched
watched(lambda made, folder: ctypes.PyDLL(None).sleep(600), 0.2)(plan.make(1, 100), pathlib.Path())
"""


def test_a_client_library_that_hangs_does_not_hold_up_the_campaign_for_ever() -> None:
    command = [sys.executable, "-c", HANGS]
    done = subprocess.run(command, capture_output=True, timeout=patient(60), cwd=ROOT, check=False)
    assert done.returncode == 1
    assert b"in watch" in done.stderr

"""Report, export and jars: what they write, and what they say when something is missing."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from korvet.spark import cli, jars
from korvet.spark.charts import Step, duration, rate_chart, step_chart
from korvet.spark.options import parse_address
from korvet.spark.report import PAGE_NAME, write_report
from korvet.spark.session import JavaMissing, java_command, parse_java_version
from korvet.spark.store import Address
from korvet.spark.tables import RedisReader
from tests.spark.test_views import MS, NOW, scenario

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

spark_test = pytest.mark.spark
TABLES = {
    "commit_history",
    "commit_rate",
    "current_offsets",
    "group_generations",
    "group_members",
    "group_metadata",
    "groups",
    "offset_commits",
    "offsets_topic",
    "quarantine",
}


class WellFormed(HTMLParser):
    """Checks that tags close in order, and notes what a browser would have to load."""

    VOID = frozenset({"meta", "rect", "circle", "line", "path", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in {"src", "srcset", "data"}]
        self.loads += [v or "" for n, v in attrs if n == "href" and not (v or "").startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def checked_page(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    parser = WellFormed()
    parser.feed(text)
    assert parser.open == []
    assert parser.loads == []
    assert "url(" not in text
    assert "<script" not in text
    return text


@spark_test
def test_report_on_nothing_and_on_groups(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    reader = RedisReader(Address(keyspace.url))
    empty = write_report(spark, reader, tmp_path / "out", NOW)
    assert empty.groups == 0
    assert "No consumer group has committed anything yet" in checked_page(empty.page)

    # Everything is replaced.
    scenario(keyspace)
    keyspace.raw_offset_record(3, b"\0\1damaged", b"x", MS)
    keyspace.commit("<b>&", "orders", 2, 0, at_ms=NOW)
    steps: list[str] = []
    done = write_report(spark, reader, tmp_path / "out", NOW, notify=steps.append)
    assert (done.groups, done.troubled) == (5, 2)
    assert len(steps) == 5
    text = checked_page(done.page)
    assert "<b>&</" not in text
    assert "&lt;b&gt;&amp;" in text
    assert text.index("abandoned") < text.index('badge behind"')
    plain = re.sub(r"<[^>]+>", " ", text)
    assert re.search(r"lost .*?39 unread, waiting 39 min", plain)
    assert re.search(r"orders\s+0\s+\d+\s+49\s+51 min\s+30\.0 s ago", plain)
    assert "client-b" in text
    assert {path.name for path in done.page.parent.iterdir()} == TABLES | {PAGE_NAME}
    lag = {
        (row["group"], row["partition"]): row["record_lag"]
        for row in spark.read.parquet(str(done.page.parent / "current_offsets")).collect()
    }
    assert lag["billing", 0] == 49
    assert spark.read.parquet(str(done.page.parent / "quarantine")).count() == 1


@spark_test
def test_commits_on_a_topic_that_is_gone(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.offsets_topic()
    keyspace.commit("g", "deleted", 0, 5, at_ms=NOW)
    done = write_report(spark, RedisReader(Address(keyspace.url)), tmp_path, NOW)
    assert (done.groups, done.troubled) == (1, 0)
    assert "deleted" in checked_page(done.page)


def test_command_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KORVET_REDIS", raising=False)
    empty, jars_dir = str(tmp_path / "none"), str(tmp_path / "jars")
    monkeypatch.setenv("KORVET_JARS_DIR", jars_dir)
    cases: list[tuple[Any, list[str], str]] = [
        (cli.report, ["--data-dir", empty], "no embedded server in"),
        (cli.report, ["--redis", "redis://127.0.0.1:1"], "no usable Redis at redis://127.0.0.1:1"),
        (cli.report, ["--source", "kafka"], "needs --bootstrap"),
        (cli.report, ["--bootstrap", "h:1", "--source", "korvet"], "goes with --source kafka"),
        (cli.report, ["--bootstrap", "h:1"], "run `korvet jars` once"),
        (cli.export, ["t", "--to", str(tmp_path)], "say --mode append or --mode overwrite"),
        (cli.export, ["t", "--to", "x", "--format", "jdbc"], "needs the name of a table"),
        (cli.export, ["t", "--to", "x", "--into", "u"], "has no table names"),
        (cli.export, ["--to", "x"], "say which topics, or --table NAME"),
        (cli.export, ["t", "--table", "members", "--to", "x"], "say which topics, or --table NAME"),
        (cli.export, ["--table", "moods", "--to", "x"], "no table moods; there are offset_commits,"),
        (cli.export, ["t", "--to", "x", "--checkpoint", "c"], "--checkpoint goes with --continuous"),
        (cli.export, ["t", "--to", "x", "--continuous", "--available-now"], "choose one"),
        (cli.export, ["t", "--to", "x", "--option", "loose"], "'loose' is not NAME=VALUE"),
        (cli.export, ["t", "--to", "x", "--redis", "redis://127.0.0.1:1"], "no usable Redis at"),
        (cli.jars, ["gamma"], "no jars gamma; there are kafka, delta"),
    ]
    for command, arguments, message in cases:
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code != 0, arguments
        assert message in result.output
        assert "Traceback" not in result.output


def test_password_leaves_the_url(tmp_path: Path) -> None:
    address = parse_address("redis://user:p%40ss@host:1/2", tmp_path, "k")
    assert (address.url, address.password) == ("redis://user@host:1/2", "p@ss")
    assert "p@ss" not in repr(address)
    assert parse_address("redis://:pw@host", tmp_path, "k").url == "redis://host"


def fake_maven(folder: Path, content: str) -> None:
    """An `mvn` that writes every artifact with the same content."""
    script = folder / "mvn"
    script.write_text(
        "#!/bin/sh\n"
        "for word; do case $word in\n"
        "-Dartifact=*) a=${word#*=};;\n"
        "-DoutputDirectory=*) o=${word#*=};;\n"
        "esac; done\n"
        "a=${a#*:}\n"
        f"printf '{content}' > \"$o/${{a%%:*}}-${{a#*:}}.jar\"\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_jars_are_fetched_once_and_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools, folder = tmp_path / "tools", tmp_path / "jars"
    tools.mkdir()
    fake_maven(tools, "good")
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    digest = hashlib.sha256(b"good").hexdigest()
    pinned = tuple(jars.Jar(jar.group, jar.artifact, jar.version, digest) for jar in jars.JARS[jars.KAFKA])
    monkeypatch.setitem(jars.JARS, jars.KAFKA, pinned)
    with pytest.raises(jars.JarsMissing, match="korvet jars"):
        jars.find_jars(folder)
    assert [outcome for _, outcome in jars.fetch_jars(folder)] == ["fetched"] * 4
    assert len(jars.find_jars(folder)) == 4
    (folder / pinned[0].file_name).write_bytes(b"changed")
    with pytest.raises(jars.JarsMissing, match="not the pinned"):
        jars.find_jars(folder)
    assert [outcome for _, outcome in jars.fetch_jars(folder)] == ["fetched", "present", "present", "present"]
    fake_maven(tools, "evil")
    (folder / pinned[0].file_name).unlink()
    with pytest.raises(jars.JarsMissing, match="SHA-256"):
        list(jars.fetch_jars(folder))
    assert not (folder / pinned[0].file_name).exists()
    # Nothing is pinned for a package that the user names: it is what the repository gives.
    assert jars.fetch_package("org.x:driver:1.2", folder).read_bytes() == b"evil"
    with pytest.raises(jars.JarsMissing, match="no Maven coordinates"):
        jars.fetch_package("../driver", folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jars.JarsMissing, match="korvet jars delta"):
        jars.find_jars(folder, jars.DELTA)


def test_java_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_java_version('openjdk version "17.0.15" 2025-04-15') == 17
    assert parse_java_version('java version "1.8.0_402"') == 8
    assert parse_java_version('openjdk version "21" 2023-09-19') == 21
    assert parse_java_version("no such thing") is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="has no bin/java"):
        java_command()


def test_durations() -> None:
    cases = {None: "\u2013", 0: "0 ms", 999: "999 ms", 1500: "1.5 s", 60_000: "1 min", 61_000: "1 min 1 s"}
    assert {ms: duration(ms) for ms in cases} == cases
    assert duration(3_600_000 * 49) == "2 d 1 h"


def test_charts_cover_all_that_happened() -> None:
    minute = 60_000
    one = rate_chart({0: 5, 2 * minute: 10}, 0, 3 * minute)
    assert one.count("<rect") == 2
    assert "10 commits per minute" in one
    # 1,000 minutes in at most 120 bars; the mean of each.
    long = rate_chart({at * minute: 3 for at in range(1000)}, 0, 999 * minute)
    assert 100 < long.count("<rect") <= 120
    steps = step_chart([Step(0, 1, "first"), Step(500, 3, "more")], 0, 1000)
    assert steps.count("<circle") == 2
    assert "more" in steps

"""Report, export and jars: their output, and their messages if something is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as sf

from korvet.offsets.packing import pack
from korvet.spark import cli
from korvet.spark.cli import report_command
from korvet.spark.cli.options import RedisOptions
from korvet.spark.report.comparison import CHANGES, Reference
from korvet.spark.report.page import series
from korvet.spark.report.pictures import BrowserError
from korvet.spark.report.report import ALERTS_NAME, PAGE_NAME, Report, write_report
from korvet.spark.report.times import clock, duration
from korvet.spark.session import jars
from korvet.spark.session.session import JavaMissing, java_command, parse_java_version
from korvet.spark.source.address import Address, Tls
from korvet.spark.source.connection import connected
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.catalog import ANSWERS, TABLES
from korvet.spark.tables.readers import RedisReader
from korvet.spark.tables.trends import (
    MAX_STEPS,
    Span,
    at_steps,
    group_trends,
    lag_over_time,
    positions_over_time,
)
from tests.spark.test_views import DAY, MS, NOW, scenario

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

spark_test = pytest.mark.spark
TO_X, NOWHERE = ["t", "--to", "x"], "redis://127.0.0.1:1"
ANSWERED = ("owners", "rebalance_costs", "slo_days")
WRITTEN = {*TABLES, *ANSWERED, "offsets_topic", CHANGES, PAGE_NAME, ALERTS_NAME}


class Parts(HTMLParser):
    """Checks that tags close in order; collects scripts and what a browser would load."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in self.VOID:
            self.open.append(tag)
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        self.loads += [given[name] for name in ("src", "srcset", "data") if name in given]
        self.loads += [value for name, value in given.items() if name == "href" and not value.startswith("#")]

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def checked_page(page: Path) -> dict[str, Any]:
    """The data of a page; checks that the page loads nothing, and has only the script in its policy."""
    parser = Parts()
    text = page.read_text(encoding="utf-8")
    parser.feed(text)
    parser.close()
    assert (parser.open, parser.loads) == ([], [])
    assert "url(" not in text
    data, script = parser.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in parser.policy
    assert f"script-src 'sha256-{digest}'" in parser.policy
    document: dict[str, Any] = json.loads(data)
    return document


def rows(document: dict[str, Any], group: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [dict(zip(document["columns"][name], row, strict=True)) for row in group[name]]


@spark_test
@pytest.mark.short
def test_report_on_nothing_and_on_groups(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    reader = RedisReader(Address(keyspace.url))
    empty = write_report(spark, reader, tmp_path / "out", NOW)
    assert empty.groups == 0
    assert checked_page(empty.page)["groups"] == []
    assert "No consumer group has committed anything yet" in empty.page.read_text(encoding="utf-8")

    # All earlier tables are replaced.
    scenario(keyspace)
    keyspace.raw_offset_record(3, b"\0\1damaged", b"x", MS)
    keyspace.commit("<b>&", "orders", 2, 0, at_ms=NOW)
    keyspace.commit("gone", "deleted", 0, 5, at_ms=NOW)
    # A group that is gone since the time that the report is compared with.
    keyspace.commit("left", "orders", 0, pack(MS, 6), at_ms=NOW - DAY)
    keyspace.commit("left", "orders", 0, None, at_ms=NOW - 20_000)
    steps: list[str] = []
    then = Reference(at_ms=NOW - 50_000)
    done = write_report(spark, reader, tmp_path / "out", NOW, compare_to=then, notify=steps.append)
    document = checked_page(done.page)
    groups = {group["name"]: group for group in document["groups"]}
    assert (done.groups, done.troubled) == (6, 3)
    assert (steps[0], steps[-1]) == ("Reading __consumer_offsets", "Writing the page")
    assert (groups["<b>&"]["status"], groups["beyond"]["status"]) == ("OK", "AHEAD")
    assert (groups["gone"]["record_lag"], groups["gone"]["topics"]) == (0, ["deleted"])
    assert groups["lost"]["record_lag"] == 39
    assert groups["lost"]["lag_ms"] == 39 * 60_000
    billing = groups["billing"]
    (offset,) = [row for row in rows(document, billing, "offsets") if row["partition"] == 0]
    assert (offset["record_lag"], offset["lag_ms"], NOW - offset["commit"]) == (49, 51 * 60_000, 30_000)
    assert "client-b" in {row["client"] for row in rows(document, billing, "inventory")}
    assert (document["unreadable"], document["as_of"]) == (1, NOW)
    # The last step of the charts is the current one.
    assert series([billing["record_lag"]]) == last(billing["history"][0])
    assert series([billing["lag_ms"]]) == last(billing["history"][1])
    assert {path.name for path in done.page.parent.iterdir()} == WRITTEN
    check_comparison(document, groups)
    written = json.loads((done.page.parent / ALERTS_NAME).read_text(encoding="utf-8"))
    assert written == done.alerts
    assert (written["severity"], written["compared_to_ms"], written["groups"]) == (
        "critical",
        NOW - 50_000,
        6,
    )
    assert {(alert["kind"], alert["group"]) for alert in written["alerts"]} == {
        ("ahead", "beyond"),
        ("behind", "billing"),
        ("behind", "lost"),
        ("stale", "lost"),
    }
    for name, table in {**TABLES, **{name: ANSWERS[name] for name in ANSWERED}}.items():
        found = spark.read.parquet(str(done.page.parent / name))
        assert found.columns == [column.name for column in table.columns]
    check_answers(document, billing)


def check_answers(document: dict[str, Any], billing: dict[str, Any]) -> None:
    """The members of billing changed within 2 ms, an hour ago. It has read six minutes in an hour."""
    owners = rows(document, billing, "owners")
    assert [(row["client"], row["partitions"], row["from"], row["until"]) for row in owners] == [
        ("client-b", "0-1", MS + 2, None),
        ("client-b", "2", MS + 1, None),
        ("client-a", "0-1", MS, MS + 2),
        ("client-a", "2", MS, MS + 1),
    ]
    assert [row["commits"] for row in owners] == [0, 0, 0, 0]
    assert [row["most"] for row in rows(document, billing, "rebalances")] == [None, None, None]
    (first, one, _) = sorted(rows(document, billing, "offsets"), key=lambda row: row["partition"])
    assert (billing["drain_ms"], billing["not_draining"], first["drain_ms"]) == (None, 1, None)
    # From the first commit on, 57 minutes had a record each, without two that were deleted.
    seconds = (NOW - MS) / 1000 - 121
    assert first["consumed"] == pytest.approx(6 / seconds)
    assert first["produced"] == pytest.approx(55 / seconds)
    assert one["consumed"] is None
    days = rows(document, billing, "slo")
    assert days
    assert sum(day["measured"] for day in days) <= DAY
    assert all(day["target"] == 0.99 for day in days)


def check_comparison(document: dict[str, Any], groups: dict[str, Any]) -> None:
    """Then billing had read up to minute 2; two of the 57 later records don't exist any more."""
    assert document["compared_to"] == NOW - 50_000
    billing = groups["billing"]
    assert billing["before"] == {
        "record_lag": 55,
        "lag_ms": 57 * 60_000 - 50_000,
        "read": 6,
        "new": 2,
        "gone": 0,
    }
    (kept,) = [row for row in rows(document, billing, "changes") if row["change"] == "kept"]
    assert (kept["partition"], kept["record_lag_before"], kept["record_lag"], kept["read"]) == (0, 55, 49, 6)
    assert groups["audit"]["before"] is None
    assert (groups["lost"]["before"]["record_lag"], groups["lost"]["before"]["read"]) == (39, 0)
    assert [(group["name"], group["record_lag"]) for group in document["gone"]] == [("left", 57)]


def last(text: str) -> str:
    """The last number of a series, decoded."""
    return [part for part in text.split(",") if part][-1]


def test_kafka_options_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    kafka, missing = ["--bootstrap", "h:1"], str(tmp_path / "none.properties")
    cases: list[tuple[Any, list[str], str]] = [
        (cli.report, ["--command-config", "x"], "--command-config needs --bootstrap HOST:PORT"),
        (cli.report, [*kafka, "--command-config", missing], "none.properties: No such file or directory"),
        (cli.export, ["t", "--to", "x", *kafka], "--bootstrap is for tables: no topics, no --from"),
        (cli.export, ["--table", "members", "--from", "f", "--to", "x", *kafka], "--bootstrap is for tables"),
    ]
    for command, options, message in cases:
        result = CliRunner().invoke(command, options)
        assert result.exit_code != 0
        assert message in result.output
        assert "Traceback" not in result.output


def test_command_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KORVET_REDIS", raising=False)
    empty, jars_dir, file = str(tmp_path / "none"), str(tmp_path / "jars"), tmp_path / "file"
    file.touch()
    monkeypatch.setenv("KORVET_JARS_DIR", jars_dir)
    monkeypatch.setenv("KORVET_BROWSER", str(tmp_path / "no-browser"))
    cases: list[tuple[Any, list[str], str]] = [
        (cli.report, ["--data-dir", empty], "no embedded server in"),
        (cli.report, ["--redis", "redis://127.0.0.1:1"], "no usable Redis at redis://127.0.0.1:1"),
        (cli.report, ["--source", "kafka"], "needs --bootstrap"),
        (cli.report, ["--bootstrap", "h:1", "--source", "korvet"], "is for --source kafka"),
        (cli.report, ["--bootstrap", "h:1"], "run `korvet jars` once"),
        (cli.report, ["--from", "x", "--bootstrap", "h:1"], "--from reads stored tables: no --source"),
        (cli.export, ["t", "--to", str(tmp_path)], "use --mode append or --mode overwrite"),
        (cli.export, ["t", "--to", "x", "--format", "jdbc"], "needs the name of a table"),
        (cli.export, ["t", "--to", "x", "--into", "u"], "has no table names"),
        (cli.export, ["--to", "x"], "give topics, --table NAME or --all-tables"),
        (cli.export, ["t", "--table", "members", "--to", "x"], "give topics, --table NAME or --all-tables"),
        (cli.export, ["--all-tables", "--table", "members", "--to", "x"], "--table NAME or --all-tables"),
        (cli.export, ["--all-tables", "--format", "csv", "--to", "x"], "and checkpoint: no --format"),
        (cli.export, ["--all-tables", "--option", "a=b", "--to", "x"], "and checkpoint: no --option"),
        (
            cli.export,
            ["--all-tables", "--continuous", "--every", "soon", "--to", "x"],
            "'soon' is not an interval",
        ),
        (cli.export, ["t", "--from", "f", "--to", "x"], "--from FOLDER needs --table NAME"),
        (
            cli.export,
            ["--table", "members", "--from", "f", "--source-option", "a=b", "--to", "x"],
            "reads files: no --source-option",
        ),
        (cli.export, ["--table", "moods", "--to", "x"], "unknown table moods; tables are offset_commits,"),
        (cli.export, ["t", "--to", "x", "--checkpoint", "c"], "--checkpoint needs --continuous"),
        (cli.export, ["t", "--to", "x", "--continuous", "--available-now"], "use either --continuous"),
        (
            cli.export,
            ["t", "--to", "x", "--continuous", "--every", "-5 seconds"],
            "'-5 seconds' is not an interval",
        ),
        (cli.export, ["t", "--to", "x", "--every", "5 seconds"], "--every needs --continuous"),
        (cli.export, ["t", "--to", ""], "must not be empty"),
        (cli.export, ["t", "--to", f"{file}/x"], f"{file} is a file, not a folder"),
        (cli.export, ["--all-tables", "--to", f"{file}/x"], f"{file} is a file, not a folder"),
        (cli.tables, ["refresh", "--to", f"{file}/x"], f"{file} is a file, not a folder"),
        (cli.tables, ["refresh", "--to", "x", "--every", "0"], "0.0 is not in the range"),
        (cli.export, ["t", "--to", "x", "--format", "jdbc", "--into", "t"], "x is not the URL of a database"),
        (cli.export, ["--table", "members", "--to", "x", "--available-now"], "rows of members change"),
        (cli.export, ["--table", "members", "--to", "x", "--source-option", "a=b"], "no --source-option"),
        (cli.export, [*TO_X, "--redis", NOWHERE, "--source-option", "colour=red"], "unknown option colour"),
        (cli.export, ["t", "--to", "x", "--option", "loose"], "'loose' is not NAME=VALUE"),
        (cli.export, ["t", "--to", "x", "--redis", "redis://127.0.0.1:1"], "no usable Redis at"),
        (cli.report, ["--png"], "--png needs a browser"),
        (cli.jars, ["gamma"], "unknown jars gamma; choose from kafka, delta"),
    ]
    for command, arguments, message in cases:
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code != 0, arguments
        assert message in result.output
        assert "Traceback" not in result.output


def test_wrong_places_are_told_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "_state").mkdir()
    (tmp_path / "_state" / "format").write_text('{"form": "delta"', encoding="utf-8")
    redis, empty = ["--redis", NOWHERE], "must not be empty"
    for command, arguments, message in [
        (cli.export, [*TO_X, "--available-now", "--checkpoint", ""], empty),
        (cli.export, ["--table", "members", "--to", "x", "--from", ""], empty),
        (cli.tables, ["refresh", "--to", ""], empty),
        (cli.tables, ["refresh", "--to", "x", "--every", "nan"], "must be a number of seconds"),
        (cli.tables, ["refresh", "--to", "x", "--every", "inf"], "inf is not in the range"),
        (cli.report, ["--from", ""], empty),
        (cli.report, ["--from", str(tmp_path)], "_state/format is damaged: it has no format"),
        (cli.export, [*TO_X, *redis, "--source-option", "topics=u"], "topics: not an option here"),
    ]:
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code in {1, 2}, arguments
        assert message in result.output


def test_a_note_of_stored_tables_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "_state").mkdir()
    (tmp_path / "_state" / "format").write_bytes(b"\xff")
    result = CliRunner().invoke(cli.report, ["--from", str(tmp_path)])
    assert "_state/format is damaged: it has no format" in result.output


def test_wrong_thresholds_and_times_are_told_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("max_wait = 5\n", encoding="utf-8")
    for arguments, message in [
        (["--thresholds", str(tmp_path / "no.toml")], "no.toml: No such file"),
        (["--thresholds", str(tmp_path / "bad.toml")], "bad.toml, line 1, key max_wait: 5 is not a duration"),
        (["--compare-to", "yesterday"], "'yesterday' is no folder, no duration such as 24h, and no time"),
        (["--compare-to", "2999-01-01"], "2999-01-01 is not in the past"),
        (["--compare-to", str(tmp_path)], "has no table partition_status"),
    ]:
        result = CliRunner().invoke(cli.report, arguments)
        assert result.exit_code == 1, arguments
        assert message in result.output


@pytest.mark.parametrize("failure", [BrowserError("the browser has ended"), OSError("no space")])
def test_pictures_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """The report is there: its alerts are printed, and have their exit status."""

    def drawn(page: Path) -> list[Path]:
        raise failure

    monkeypatch.setattr(report_command, "find_browser", lambda: "browser")
    monkeypatch.setattr(report_command, "save_pictures", drawn)
    for severity, status in [("ok", 5), ("warning", 5), ("critical", 4)]:
        done = Report(tmp_path / "report.html", 2, 1, {"severity": severity, "findings": []})
        monkeypatch.setattr(report_command, "_report_now", lambda *_, done=done: done)
        result = CliRunner().invoke(cli.report, ["--png", "--fail-on", "critical"])
        assert result.exit_code == status
        assert f"The report is written, but not its pictures (--png): {failure}" in result.stderr
        assert "2 groups, 1 needs attention" in result.stdout


def test_what_redis_or_a_folder_refuses(
    redis_url: str, tmp_path: Path, keyspace: Keyspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KORVET_REDIS", raising=False)
    (tmp_path / "file").touch()
    keyspace.topic("t")
    keyspace.client.execute_command("ACL", "SETUSER", "weak", "on", ">hush", "+@connection", "~*")
    weak = redis_url.replace("unix://", "unix://weak:hush@")
    cases: list[tuple[Any, list[str], str]] = [
        (
            cli.report,
            ["--redis", redis_url, "--keyspace", "other"],
            "there is no keyspace 'other' in Redis at",
        ),
        (cli.report, ["--redis", redis_url, "--out", f"{tmp_path}/file/x"], f"{tmp_path}/file is a file"),
        (cli.report, ["--redis", weak], "Redis refuses: User weak has no permissions"),
        (cli.export, [*TO_X, "--redis", weak], "Redis refuses: User weak has no permissions"),
    ]
    for command, arguments, message in cases:
        result = CliRunner().invoke(command, arguments)
        assert result.exit_code == 1, arguments
        assert message in result.output
        assert "hush" not in result.output
    keyspace.client.execute_command("ACL", "DELUSER", "weak")


def test_embedded_server_with_a_path_too_long_for_a_socket(redis_url: str, tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 20)
    folder.mkdir()
    (folder / "server.sock").symlink_to(redis_url.removeprefix("unix://"))
    address = RedisOptions(None, folder).address()
    assert address.url == redis_url
    with connected(address) as connection:
        assert connection.call("EXISTS", "nothing") == 0
    (folder / "server.sock").unlink()
    (folder / "server.sock").symlink_to(folder / "gone.sock")
    with pytest.raises(SourceError, match="no embedded server in"):
        RedisOptions(None, folder).address()


def test_who_we_are_for_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def address(url: str, **more: Any) -> Address:
        return RedisOptions(url, tmp_path, **more).address()

    def login(url: str, **more: str) -> tuple[str, object, object]:
        found = address(url, **more)
        return found.url, found.arguments().get("username"), found.arguments().get("password")

    assert login("redis://user:p%40ss@host:1/2") == ("redis://user@host:1/2", None, "p@ss")
    assert "p@ss" not in repr(address("redis://user:p%40ss@host:1/2"))
    assert login("redis://:pw@one,two") == ("redis://one,two", None, "pw")
    assert address("redis://h", max_cpu=0.5).max_cpu == 0.5
    several = address("redis://u:pw@one:7,[::1]:8/2")
    assert several.url == "redis://u@one:7,[::1]:8/2"
    assert several.server_urls() == ["redis://u@one:7/2", "redis://u@[::1]:8/2"]
    assert login("redis://h?username=me&password=p%40ss&db=2") == ("redis://h?db=2", "me", "p@ss")
    named = address("redis+sentinel://u:pw@one,two/main?sentinel_username=me&sentinel_password=p%40ss")
    assert named.url == "redis+sentinel://u@one,two/main?sentinel_username=me"
    assert (named.password.reveal(), named.sentinel_password.reveal()) == ("pw", "p@ss")
    assert login("unix:///run/redis.sock") == ("unix:///run/redis.sock", None, None)
    assert login("unix://me:pw@/run/redis.sock?db=1") == ("unix://me@/run/redis.sock?db=1", None, "pw")
    (tmp_path / "secret").write_text("from a file\n")
    file = str(tmp_path / "secret")
    assert login("redis://h", redis_user="me", redis_password_file=file) == ("redis://h", "me", "from a file")
    monkeypatch.setenv("KORVET_REDIS_PASSWORD", "from outside")
    assert login("redis://h") == ("redis://h", None, "from outside")
    assert login("redis://:pw@h")[2] == "pw"
    assert login("redis://h", redis_password_file=file)[2] == "from a file"
    for url, more, message in [
        ("redis://:pw@h", {"redis_password_file": file}, "not both"),
        ("redis://me@h", {"redis_user": "you"}, "not both"),
        ("redis://h", {"redis_ca": "ca.pem"}, "rediss://"),
    ]:
        with pytest.raises(SourceError, match=message):
            address(url, **more)
    tls = address("rediss://h", redis_ca=file, redis_cert=file, redis_key=file).tls
    assert tls == Tls(file, file, file)


def fake_maven(folder: Path, content: str) -> None:
    """A fake `mvn` that writes every artifact with the same content."""
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
    # A package that the user names has no pinned checksum.
    assert jars.fetch_package("org.x:driver:1.2", folder).read_bytes() == b"evil"
    with pytest.raises(jars.JarsMissing, match="not Maven coordinates"):
        jars.fetch_package("../driver", folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    remedy = "korvet jars delta" if jars.JARS[jars.DELTA] else "no release for Spark .*: use Spark 4"
    with pytest.raises(jars.JarsMissing, match=remedy):
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


def test_spans_have_steps_that_people_think_in() -> None:
    day = 86_400_000
    assert Span.over(None, 10 * day, day).step_ms == 1000
    assert Span.over(0, 10 * day, day) == Span(9 * day, 10 * day, 1_800_000)
    short = Span.over(10 * day - 50_000, 10 * day, day)
    assert (short.step_ms, short.steps) == (1000, 50)
    for history_ms in (1000, 3_600_000, day, 30 * day, 400 * day):
        span = Span.over(0, 500 * day, history_ms)
        assert span.steps <= MAX_STEPS
        assert span.from_ms <= 500 * day - history_ms
        assert span.from_ms % span.step_ms == 0


@spark_test
def test_commits_at_any_time_have_a_place_in_charts(spark: SparkSession) -> None:
    """A record of `__consumer_offsets` may contain any number as its time."""
    times = {"past": -(2**63), "early": -1, "future": 2**63 - 1}
    commits = spark.createDataFrame(
        [(group, "t", 0, 5, at_ms, 0, False, None) for group, at_ms in times.items()],
        "group string, topic string, partition int, committed_offset bigint, commit_ms bigint, "
        "src_offset bigint, tombstone boolean, src_ts timestamp",
    )
    span = Span(1000, 4000, 1000)
    steps: dict[str, list[int]] = {}
    for row in at_steps(positions_over_time(commits, span), span).orderBy("step").collect():
        steps.setdefault(row["group"], []).append(row["step"])
    assert steps == {"past": [0, 1, 2], "early": [0, 1, 2], "future": [2]}
    assert clock(2**63 - 1) == "9223372036854775807 ms"


@spark_test
def test_lag_over_time_is_what_was_worked_out_by_hand(spark: SparkSession) -> None:
    """Records at 1, 2, 3, 4 and 6 s. The group commits after the first at 1.5 s, after the third at 4.5 s,
    and writes a tombstone at 6.5 s; another group commits only at the beginning.
    """
    base = 1_700_000_000_000
    second = [base + 1000 * number for number in range(9)]
    records = spark.createDataFrame(
        [
            ("t", 0, second[number] << 10, datetime.fromtimestamp(second[number] / 1000, UTC))
            for number in (1, 2, 3, 4, 6)
        ],
        "topic string, partition int, offset bigint, timestamp timestamp",
    )
    made = [
        ("g", (second[2] << 10), base + 1500, 0, False),
        ("g", (second[3] << 10) + 1, base + 4500, 1, False),
        ("g", None, base + 6500, 2, True),
        ("idle", second[0] << 10, base + 100, 3, False),
    ]
    commits = spark.createDataFrame(
        [(group, "t", 0, offset, at_ms, number, gone) for group, offset, at_ms, number, gone in made],
        "group string, topic string, partition int, committed_offset bigint, commit_ms bigint, "
        "src_offset bigint, tombstone boolean",
    ).withColumn("src_ts", sf.timestamp_millis("commit_ms"))
    span = Span(base, base + 8000, 1000)
    lag = lag_over_time(positions_over_time(commits, span), records, span)
    (row, idle) = group_trends(lag, commits, span).orderBy("group").collect()
    found = {entry["step"]: (entry["record_lag"], entry["lag_ms"]) for entry in row["lag"]}
    # Step n ends at n + 1 s.
    assert found == {1: (1, 0), 2: (2, 1000), 3: (3, 2000), 4: (1, 1000), 5: (2, 2000)}
    assert {entry["step"]: entry["commits"] for entry in row["commits"]} == {1: 1, 4: 1}
    assert {entry["step"]: entry["record_lag"] for entry in idle["lag"]} == dict(
        enumerate([1, 2, 3, 4, 4, 5, 5, 5])
    )
    assert max(entry["lag_ms"] for entry in idle["lag"]) == 7000

"""All tables of a keyspace, stored in a folder and updated: `korvet tables refresh`."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, nullcontext
from datetime import UTC
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from korvet.spark.export import all_tables
from korvet.spark.export.all_tables import check_topic, seconds_of, stored_table, update_tables
from korvet.spark.export.checkpoint import claimed
from korvet.spark.export.tables import batch_table
from korvet.spark.export.target import ExportError
from korvet.spark.report.comparison import ComparisonError
from korvet.spark.report.kept import write_kept_report
from korvet.spark.source.address import Address
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.kafka_offsets import HANGING, NOT_READ, Finding
from korvet.spark.tables.readers import RedisReader
from korvet.spark.tables.states import States
from korvet.spark.tables.store import Store
from korvet.spark.tables.stored_tables import LAST_WRITTEN, StoredTables
from tests.spark.test_report import checked_page

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from korvet.spark.tables.catalog import Table
    from tests.spark.conftest import Connector
    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark

MS = 1_700_000_000_000


class Cut(Exception):
    """The process ends here."""


NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "groups.ipynb"


def notebook_prints(
    spark: SparkSession,
    folder: str,
    jars: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Run the notebook on a folder, in the session of the tests. Returns what it prints."""
    monkeypatch.setenv("KORVET_TABLES", folder)
    monkeypatch.setenv("KORVET_JARS_DIR", str(jars))
    monkeypatch.setattr("korvet.spark.session.build_session", lambda *_, **__: spark)
    names: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    return capsys.readouterr().out


@pytest.mark.long
@pytest.mark.usefixtures("delta", "few_rows")
def test_questions_and_the_notebook(
    spark: SparkSession,
    keyspace: Keyspace,
    delta_jars: Connector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keyspace.topic("t")
    keyspace.offsets_topic()
    for number in range(4):
        keyspace.add("t", 0, f"{MS}-{number}", b"value", b"v")
    for offset in (1, 3):
        keyspace.commit("g", "t", 0, (MS << 10) + offset, at_ms=MS + offset)
    keyspace.commit("ahead", "t", 0, (MS << 10) + 5, at_ms=MS + 7)
    folder = str(tmp_path / "groups")
    update_tables(spark, Address(keyspace.url), folder, compact=True)
    moves = stored_table(spark, folder, "reads").where("group = 'g'").orderBy("to_offset").collect()
    assert [(row["from_offset"], row["to_offset"]) for row in moves] == [
        (None, (MS << 10) + 1),
        ((MS << 10) + 1, (MS << 10) + 3),
    ]
    sizes = stored_table(spark, folder, "topic_growth").where("topic = 't'").collect()
    assert [row["entries"] for row in sizes] == [4]
    printed = notebook_prints(spark, folder, delta_jars.folder, monkeypatch, capsys)
    # What needs attention, who read what, and the sizes of topics.
    assert re.search(r"\|ahead *\|AHEAD *\|", printed), printed
    assert re.search(rf"\|g *\|t *\|0 *\|{(MS << 10) + 1} *\|{(MS << 10) + 3} *\|", printed), printed
    assert re.search(r"\|__consumer_offsets *\|", printed), printed


def without_a_folder(monkeypatch: pytest.MonkeyPatch, update: Callable[..., None]) -> None:
    """Let update_tables call a function in place of StoredTables.update."""
    stored = SimpleNamespace(update=lambda *_, **lookups: update(**lookups) or [])
    monkeypatch.setattr(all_tables, "StoredTables", lambda *_, **__: stored)
    monkeypatch.setattr(all_tables, "claimed", lambda *_: nullcontext())
    monkeypatch.setattr(all_tables, "check_topic", lambda *_: None)
    monkeypatch.setattr(all_tables, "stream_topics", lambda *_: None)


def test_each_refresh_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of --command-config names a password, which may have changed since."""
    done: list[str] = []

    @contextmanager
    def connected(_: object, __: object) -> Iterator[None]:
        done.append("connected")
        yield
        done.append("closed")

    def wait(_: float) -> None:
        if done.count("refreshed") == 2:
            raise KeyboardInterrupt

    without_a_folder(monkeypatch, lambda **_: done.append("refreshed"))
    monkeypatch.setattr(RedisReader, "connected", connected)
    monkeypatch.setattr(all_tables.time, "sleep", wait)
    session: Any = None
    with pytest.raises(KeyboardInterrupt):
        update_tables(session, Address(), "folder", every_s=1)
    assert done == 2 * ["connected", "refreshed", "closed"]


def test_options_of_the_source_hold_for_all_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of one keyspace are not compared with the records of another one."""
    given: dict[str, Any] = {}
    without_a_folder(monkeypatch, given.update)
    session: Any = None
    options = {"keyspace": "other", "redis.password": "secret", "maxRedisCpu": "0.5"}
    update_tables(session, Address(), "folder", options=options)
    address = given["logs"].__self__.address
    assert (address.keyspace, address.password.value, address.max_cpu) == ("other", "secret", 0.5)


def test_a_topic_that_was_created_again_is_refused(keyspace: Keyspace) -> None:
    """Its offsets have begun again, and the commit with the largest offset is the newest one."""
    kept: dict[str, str] = {}
    note: Any = SimpleNamespace(
        exists=lambda: bool(kept),
        read_text=lambda: kept["id"],
        write_text=lambda text: kept.update(id=text),
    )

    def check(topic_id: str) -> None:
        topic = json.dumps({"partitions": 50, "topic_id": topic_id, "internal": True})
        keyspace.client.hset("{korvet}:topics", "__consumer_offsets", topic)
        check_topic(note, Address(keyspace.url), "/data/groups")

    check("")
    assert not kept
    check("a")
    check("a")
    with pytest.raises(ExportError, match="created again since the tables in /data/groups began: choose an"):
        check("b")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"export_id": "a"}', '{"export_id": 1, "what": "a"}'])
def test_a_damaged_identity_of_a_checkpoint_is_named(text: str) -> None:
    file = SimpleNamespace(location="/c/korvet-export.json", exists=lambda: True, read_text=lambda: text)
    folder: Any = SimpleNamespace(child=lambda _: file)
    with pytest.raises(ExportError, match=r"/c/korvet-export\.json is damaged"), claimed(folder, "a", print):
        pass


@pytest.mark.parametrize("text", ["{", "[]", '{"commits": "3"}', '{"commits": null}'])
def test_a_damaged_state_is_named(text: str) -> None:
    note = SimpleNamespace(location="/t/_state/done/3", read_text=lambda: text)
    folder: Any = SimpleNamespace(child=lambda _: SimpleNamespace(child=lambda _: note))
    with pytest.raises(SourceError, match="/t/_state/done/3 is damaged"):
        States(folder).after(3)


@pytest.mark.usefixtures("delta", "few_rows")
def test_all_tables_kept_in_a_folder(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyspace.topic("t")
    keyspace.offsets_topic()
    for number in range(4):
        keyspace.add("t", 0, f"{MS}-{number}", b"value", b"v")
    keyspace.commit("g", "t", 0, (MS << 10) + 1, at_ms=MS + 5)
    folder, address = str(tmp_path / "groups"), Address(keyspace.url)
    with pytest.raises(ExportError, match=r"contains no tables: `korvet tables refresh"):
        stored_table(spark, folder, "record_lag")
    with pytest.raises(SourceError, match="assign: not an option here, the topics are __consumer_offsets"):
        update_tables(spark, address, folder, options={"assign": "{}"})
    update_tables(spark, address, folder)
    keyspace.commit("g", "t", 0, (MS << 10) + 3, at_ms=MS + 6)
    keyspace.commit("ahead", "t", 0, (MS << 10) + 5, at_ms=MS + 7)
    keyspace.commit("lost", "gone", 0, 5, at_ms=MS + 7)
    told: list[Finding] = []
    monkeypatch.setattr(RedisReader, "findings", lambda _, __, topics, ___: [hanging(topics)])
    update_tables(spark, address, folder, tell=told.append)
    assert told == [hanging(["t", "gone"])]
    odd = stored_table(spark, folder, "anomalies")
    assert sorted((row["group"], row["kind"], row["end_offset"]) for row in odd.collect()) == [
        ("ahead", "past_end", (MS << 10) + 4),
        ("lost", "unknown_partition", None),
    ]
    batch = batch_table(spark, RedisReader(address), "anomalies", MS + 8)
    assert sorted(map(repr, batch.collect())) == sorted(map(repr, odd.collect()))
    lags = stored_table(spark, folder, "record_lag").where("group = 'g'").orderBy("as_of_ts").collect()
    assert [row["record_lag"] for row in lags] == [3, 1]
    (current,) = stored_table(spark, folder, "current_offsets").where("group = 'g'").collect()
    assert current["committed_offset"] == (MS << 10) + 3
    assert stored_table(spark, folder, "offset_commits").count() == 4
    check_kept_reports(StoredTables(spark, folder), lags, tmp_path)
    with pytest.raises(ExportError, match="unknown table nowhere"):
        stored_table(spark, folder, "nowhere")
    keyspace.commit("g", "t", 0, (MS << 10) + 4, at_ms=MS + 8)
    # As a copy of the folder that was made during an update.
    (done,) = (tmp_path / "groups" / "_state" / "done").glob("1")
    done.unlink()
    with pytest.raises(StreamingQueryException, match="lack the state after batch 1, which their checkpoint"):
        update_tables(spark, address, folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(ExportError, match="contains other files"):
        update_tables(spark, address, str(tmp_path / "other"))


@pytest.mark.long
@pytest.mark.usefixtures("delta", "few_rows")
def test_an_interrupted_snapshot_is_not_shown(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report shows no status of groups without those of their partitions."""
    keyspace.topic("t")
    keyspace.offsets_topic()
    keyspace.commit("g", "t", 0, (MS << 10) + 1, at_ms=MS + 5)
    folder, address = str(tmp_path / "groups"), Address(keyspace.url)
    update_tables(spark, address, folder)
    stored = StoredTables(spark, folder)
    newest, add = stored.newest_snapshot(), Store.add_snapshot
    assert newest is not None

    def cut(store: Store, table: Table, as_of_ms: int, frame: DataFrame, *, again: bool) -> None:
        if table.name == "partition_status":
            raise Cut
        if table.name == LAST_WRITTEN:
            add(store, table, as_of_ms, frame, again=again)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "add_snapshot", cut)
        patched.setattr(Store, "replace", lambda *_: None)
        with pytest.raises(Cut):
            update_tables(spark, address, folder)
    assert stored.newest_snapshot() == newest


def hanging(topics: Collection[str]) -> Finding:
    return Finding(HANGING, f"a transaction hangs in one of {sorted(topics)}", "t", 0, 3_600_000)


def check_kept_reports(stored: StoredTables, lags: list[Row], tmp_path: Path) -> None:
    """The report on the newest snapshot, compared with the first one. lags: of group g, in both."""
    first, last = (row["as_of_ts"].astimezone(UTC) for row in lags)
    done = write_kept_report(stored, "the tables", tmp_path / "report", compare_to=first.isoformat())
    page = checked_page(done.page)
    assert page["as_of"] == stored.newest_snapshot()
    (finding,) = page["findings"]
    assert finding == done.alerts["findings"][0]
    assert (finding["severity"], finding["message"]) == (
        "critical",
        "a transaction hangs in one of ['gone', 't']; open for 1 h",
    )
    groups = {group["name"]: (group["status"], group["record_lag"]) for group in page["groups"]}
    assert groups == {"g": ("BEHIND", 1), "ahead": ("AHEAD", 0), "lost": ("STALE", 0)}
    assert page["compared_to"] == round(first.timestamp() * 1000)
    before = {group["name"]: group["before"] for group in page["groups"]}
    assert [before["g"][name] for name in ("record_lag", "read", "new", "gone")] == [3, None, 0, 0]
    assert (before["ahead"], page["gone_total"]) == (None, 0)
    # As after a refresh that was interrupted before it had the status of groups.
    (tmp_path / "groups" / "_state" / "snapshot" / f"{page['as_of']}").unlink()
    (unknown,) = stored.findings(page["as_of"])
    assert (unknown.kind, "the refresh after this snapshot was interrupted" in unknown.message) == (
        NOT_READ,
        True,
    )
    for when, message in [
        ("2001-01-01", "the tables has no snapshot until 2001-01-01T00:00:00Z"),
        (last.isoformat(), "is not in the past"),
    ]:
        with pytest.raises(ComparisonError, match=message):
            write_kept_report(stored, "the tables", tmp_path / "report", compare_to=when)
    with pytest.raises(SourceError, match="nothing contains no status of groups: `korvet tables refresh`"):
        write_kept_report(StoredTables(stored.spark, str(tmp_path / "none")), "nothing", tmp_path / "report")


def test_intervals() -> None:
    assert [seconds_of(text) for text in ("10 seconds", "1 minute", " 250 milliseconds")] == [10, 60, 0.25]
    with pytest.raises(ExportError, match="not an interval"):
        seconds_of("soon")

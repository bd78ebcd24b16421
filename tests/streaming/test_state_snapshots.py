"""Loads are forgotten, and a rebuild, a replay and the views come to what they came to with them. No JVM.

Longer than other files: forgetting, rebuilding and replaying are all tried on the same calm lake.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import Phase, assume, given
from hypothesis import strategies as st

from anabranch.cli.main import cli
from anabranch.history.check.checking import check_lake
from anabranch.history.explain.checkpoints import NotOnRecord
from anabranch.history.explain.record import explain
from anabranch.history.rebuild import rebuild_checkpoint
from anabranch.history.recorded import RecordedHistory, newest_before
from anabranch.history.replay.report import replay
from anabranch.history.state_snapshots import make_horizon
from anabranch.query.sql import LakeSql
from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.topics.from_lake import lines_of_lake
from decisions.topic.layout import SegmentLayout
from engine.autoscale.family import LOADS, TOPICS
from engine.autoscale.loads_codec import unpack_loads
from engine.autoscale.topics_codec import unpack_topics
from engine.kernel.packed import StoredPart
from engine.replay import RebuildError
from lake import retention_filter
from lake.compaction import ALONE, exclude_others
from lake.files import read_table, table_path
from lake.forgotten import forgotten_before
from lake.maintenance import compact_by_delta_rs
from lake.retention import batches_limit, forget_rows
from lake.retention_filter import THINNED
from lake.state_snapshots import newest_horizon, write_horizon
from lake.tables import OpenTable, create_lake, create_table
from lake.tail import Tail
from schemas.tables.arrow import arrow_schema
from schemas.tables.rows import BATCHES, EVENTS, HORIZONS, SEGMENT_LOAD
from streaming.checkpoint.storage import LocalFiles
from streaming.sink.sink import APP
from tests.engine.buckets import CONFIGURED, SETTINGS
from tests.engine.records import layout, stats, tick
from tests.engine.test_regrouping import all_loads
from tests.engine.test_replay import NAMES, STORY, RecordedBucket, told
from tests.examples import examples

MINUTE = 60_000
DAY = date(2025, 11, 21)
AT = datetime(2025, 11, 21, tzinfo=timezone.utc)
MIDNIGHT = int(AT.timestamp() * 1000)
BOUNDS = {topic: {0: (0, 10**9)} for topic in ("segment-stats", "consumer-events", "control-events")}


@pytest.fixture(autouse=True, scope="module")
def without_margin():
    """Rows right before midnight are old here: no hours before the days that are kept stay."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(retention_filter, "MARGIN", timedelta(0))
        yield


def in_a_lake(bucket, lake):
    for name, table in create_lake(lake).items():
        rows = [some for some in bucket.tables.get(name, []) if len(some)]
        # Three batches in a commit, which costs more than they do.
        for number, some in enumerate(pa.concat_tables(rows[first : first + 3]) for first in range(0, len(rows), 3)):
            done = CommitProperties(app_transactions=[Transaction(f"{APP}:first", number)])
            write_deltalake(table, some, mode="append", commit_properties=done)


def rebuilt(lake, folder, buckets=2):
    """Topics, loads and offsets of a checkpoint that is made from a lake."""
    where = {name: number % buckets for number, name in enumerate(NAMES)}
    rebuild_checkpoint(
        lake,
        LocalFiles(folder),
        SETTINGS,
        CONFIGURED,
        buckets,
        lambda names: {name: where[name] for name in names},
        BOUNDS,
    )
    found = []
    for row in pq.read_table(f"{folder}/rebuilt/state.parquet").to_pylist():
        topics, loads = unpack_topics(StoredPart(row[TOPICS])), unpack_loads(StoredPart(row[LOADS]))
        policies = (topics.configured, topics.cluster_policy, topics.namespace_policies, topics.policy_senders)
        found.append((topics.topics, topics.ended, policies, all_loads(loads)))
    start = json.loads(Path(f"{folder}/rebuilt/start.json").read_text())
    return found, start["startingOffsets"]


def replayed(lake, folder, since=None):
    recorded = RecordedHistory(lake, folder, with_ticks=True, horizon=newest_before(lake, since))
    return replay(recorded, CONFIGURED, MIDNIGHT).to_json()


def stood(lake, *minutes):
    """What the views say of instants; not since when before midnight: the first to say so may be forgotten."""
    asked = [
        f"SELECT * FROM {view}(TIMESTAMP '{AT + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}')"
        for minute in minutes
        for view in ("load_at", "layout_at", "fleet_health_at")
    ]
    asked += ["SELECT * FROM holds_now", "SELECT * FROM consumers_waiting"]
    asked += ["SELECT * FROM decision_outcomes WHERE decided_at >= TIMESTAMP '2025-11-21T00:00:00Z'"]
    sql, found = LakeSql(lake), []
    for one in asked:
        rows = sql.rows(one, is_own=True)
        since = [{"valid_from": max(row["valid_from"], AT)} if "valid_from" in row else {} for row in rows]
        found.append(sorted(str({**row, **told}) for row, told in zip(rows, since, strict=True)))
    return found


def forget_before(lake, at=AT, tables=(SEGMENT_LOAD,), **more):
    write_horizon(lake, make_horizon(lake, at, SETTINGS, CONFIGURED))
    first, *_ = [forget_rows(lake, table, at.date(), is_dry_run=False, **more) for table in tables]
    return first


@pytest.mark.timeout(900)
@given(STORY, STORY, st.booleans())
@examples(1, phases=[Phase.explicit, Phase.generate])
def test_deleted_rows_do_not_change_answers(story, rest, is_compacted):
    """A rebuild, a replay and the views of later instants are as before."""
    # Hypothesis begins with the simplest of all, which shows little.
    assume(all(sum(len(events) for events, *_ in part) > 3 for part in (story, rest)))
    bucket = RecordedBucket()
    ends = told(story, bucket, MIDNIGHT - 40 * MINUTE)
    ends = told(rest, bucket, max(ends, MIDNIGHT) + MINUTE)
    with TemporaryDirectory() as folder:
        root, lake = Path(folder), f"{folder}/lake"
        in_a_lake(bucket, lake)
        if is_compacted:
            compact_by_delta_rs(lake, SEGMENT_LOAD, None)
        instants = [0, (ends - MIDNIGHT) // MINUTE + 1]
        before = rebuilt(lake, f"{folder}/a"), stood(lake, *instants)
        compared, wrong = replayed(lake, root / "b"), found_wrong(lake)
        tail = Tail(lake, SEGMENT_LOAD)
        tail.read()
        there = DeltaTable(table_path(lake, SEGMENT_LOAD)).to_pyarrow_table()
        planned = forget_rows(lake, SEGMENT_LOAD, DAY, is_dry_run=True)
        done = forget_before(lake, tables=[table for table in THINNED if table is not BATCHES])
        left = DeltaTable(table_path(lake, SEGMENT_LOAD)).to_pyarrow_table()
        assert (done.rows, done.days, done.files) == (planned.rows, planned.days, planned.files)
        assert len(there) - len(left) == done.rows
        assert tail.read() == []
        assert (rebuilt(lake, f"{folder}/c"), stood(lake, *instants)) == before
        assert replayed(lake, root / "d", AT) == compared
        assert found_wrong(lake) <= wrong
        if batches_limit(lake) is not None:
            forget_rows(lake, BATCHES, DAY, is_dry_run=False)
            assert rebuilt(lake, f"{folder}/e") == before[0]
            assert replayed(lake, root / "f", AT) == compared
            assert {one for one in found_wrong(lake) if one[0] != "gap"} <= wrong
        # Brute force: of each segment the newest old rows stay, and all that is not old.
        newest = {}
        for row in there.to_pylist():
            if row["day"] < DAY:
                key = row["topic"], row["segment_id"]
                newest[key] = max(newest.get(key, row["accepted_at"]), row["accepted_at"])
        stay = [
            row
            for row in there.to_pylist()
            if row["day"] >= DAY or row["accepted_at"] == newest[row["topic"], row["segment_id"]]
        ]
        assert sorted(map(str, left.to_pylist())) == sorted(map(str, stay))


def found_wrong(lake):
    found = check_lake(lake).to_json()["findings"]
    return {(one["kind"], one["table"], told) for one in found for told in one["told"]}


def calm(minutes=range(-90, 90, 10)):
    """Two topics whose loads change all the time, around midnight."""
    bucket = RecordedBucket()
    begin = MIDNIGHT - 100 * MINUTE
    other = "topic://other/shop/t"
    bucket.batch(begin, *(layout(SegmentLayout.create(2, begin), topic=name) for name in (NAMES[0], other)))
    for place, minute in enumerate(minutes):
        at = MIDNIGHT + minute * MINUTE
        rate = 100.0 * 2 ** (place % 5)
        bucket.batch(at, stats({0: rate, 1: rate}, at, NAMES[0]), stats({0: rate, 1: rate}, at, other), tick(at))
    return bucket


def back_in_time():
    bucket = calm()
    bucket.batch(MIDNIGHT - 5 * MINUTE, tick(1))
    return bucket


LAKES = {
    "calm": calm,
    "until midnight": lambda: calm(range(-90, -10, 10)),
    "over two midnights": lambda: calm(range(-90, 1440 + 90, 60)),
    "from half hour to half hour": lambda: calm([*range(-90, 90, 30), *range(90, 1440 + 90, 60)]),
    "clock set back": back_in_time,
}


@pytest.fixture(scope="module")
def copy_lake(tmp_path_factory):
    """Copies a lake to a folder; each is written once."""
    written = {}

    def copy(name, folder):
        if name not in written:
            written[name] = tmp_path_factory.mktemp("calm") / "lake"
            in_a_lake(LAKES[name](), written[name])
        return str(shutil.copytree(written[name], folder))

    return copy


@pytest.fixture
def lake(copy_lake, tmp_path):
    return copy_lake("calm", tmp_path / "lake")


OTHER = "topic://other/shop/t"


def stored(lake):
    rows = read_table(DeltaTable(table_path(lake, SEGMENT_LOAD)), ["topic", "accepted_at"]).to_pylist()
    return sorted((row["topic"], (row["accepted_at"] - AT) // timedelta(minutes=1)) for row in rows)


def test_loads_are_not_forgotten_without_a_horizon(lake):
    before = stored(lake)
    with pytest.raises(ValueError, match="there is no horizon"):
        forget_rows(lake, SEGMENT_LOAD, DAY, is_dry_run=False)
    assert stored(lake) == before


def test_deletion_by_namespace_spares_others(lake):
    before = stored(lake)
    forget_before(lake, namespaces=["other/shop"])
    gone = [row for row in before if row[0].startswith("topic://other/shop/") and row[1] < -10]
    assert stored(lake) == sorted(row for row in before if row not in gone)
    assert gone


def test_namespace_that_is_cut_hides_no_other(lake, tmp_path):
    before = AT - timedelta(minutes=15)
    known = explain(lake, NAMES[0], before, CONFIGURED)
    forget_before(lake, tables=THINNED, namespaces=["other/shop"])
    found = explain(lake, NAMES[0], before, CONFIGURED)
    assert (found.snapshot, found.answer, found.doubts) == (known.snapshot, known.answer, known.doubts)
    with pytest.raises(NotOnRecord, match="rows before 2025-11-21 are forgotten"):
        explain(lake, OTHER, before, CONFIGURED)
    assert explain(lake, OTHER, AT + timedelta(minutes=25), CONFIGURED).snapshot.loads
    history = {
        name: open_history(lake, tmp_path / name[-1], None, None, name, CONFIGURED).part(0)
        for name in (NAMES[0], OTHER)
    }
    assert [part[0].began_at < MIDNIGHT for part in history.values()] == [True, False]
    earliest = {name: min(line.at for line in lines_of_lake(lake)[0] if line.topic == name) for name in history}
    assert [at < MIDNIGHT for at in earliest.values()] == [True, False]
    begin = newest_before(lake, None, [NAMES[0]])
    recorded = RecordedHistory(lake, tmp_path / "b", with_ticks=True, topics=[NAMES[0]], horizon=begin)
    again = replay(recorded, CONFIGURED, None, [NAMES[0]]).to_json()
    assert (again["differences"], again["since"]) == (0, MIDNIGHT - 100 * MINUTE)
    assert rebuilt_calm(lake, tmp_path / "c")


def test_horizon_bounds_explanations(lake, tmp_path):
    """Nothing is found before it; later decisions are explained as before."""
    at, before = AT + timedelta(minutes=25), AT - timedelta(minutes=15)
    known = explain(lake, NAMES[0], at, CONFIGURED)
    assert explain(lake, NAMES[0], before, CONFIGURED).snapshot.loads
    forget_before(lake)
    found = explain(lake, NAMES[0], at, CONFIGURED)
    assert (found.snapshot, found.answer, found.doubts) == (known.snapshot, known.answer, known.doubts)
    assert found.hold["seq"] == known.hold["seq"]
    with pytest.raises(NotOnRecord, match="rows before 2025-11-21 are forgotten"):
        explain(lake, NAMES[0], before, CONFIGURED)
    with pytest.raises(RebuildError, match="rows before 2025-11-21 are forgotten"):
        replayed(lake, tmp_path / "r", before)


def test_a_second_horizon_goes_on_from_the_first(copy_lake, tmp_path):
    lake, whole = (copy_lake("over two midnights", tmp_path / name) for name in ("lake", "whole"))
    forget_before(lake)
    later = AT + timedelta(days=1)
    forget_before(lake, later)
    assert newest_horizon(lake, ["first"]).at == later
    assert newest_horizon(lake, ["first"], later - timedelta(seconds=1)).at == AT
    assert newest_horizon(lake, ["another"]) is None
    assert rebuilt_calm(lake, tmp_path / "a") == rebuilt_calm(whole, tmp_path / "b")
    assert forgotten_before(DeltaTable(table_path(lake, SEGMENT_LOAD))) == later.date()
    assert {kind for kind, _, _ in found_wrong(lake)} == {"open"}


def test_rows_of_a_job_that_goes_on_are_kept(copy_lake, tmp_path):
    """All tables are cut while the last third of the batches is written, a commit for each table of a batch."""
    bucket, lake, whole = calm(), str(tmp_path / "lake"), copy_lake("calm", tmp_path / "whole")
    first, second = RecordedBucket(), list[tuple[str, pa.Table]]()
    for name, parts in bucket.tables.items():
        begins = len(parts) * 2 // 3
        first.tables[name] = parts[:begins]
        second += [(name, part) for part in parts[begins:] if len(part)]
    in_a_lake(first, lake)
    second.sort(key=lambda each: (max(each[1]["batch_id"].to_pylist()), each[0] == BATCHES.name))

    def go_on():
        for number, (name, part) in enumerate(second):
            done = CommitProperties(app_transactions=[Transaction(f"{APP}:first", 100 + number)])
            write_deltalake(f"{lake}/{name}", part, mode="append", commit_properties=done)

    job = threading.Thread(target=go_on)
    job.start()
    forget_before(lake, tables=THINNED)
    job.join()
    assert stored(lake) == [row for row in stored(whole) if row[1] >= -10]
    assert rebuilt_calm(lake, tmp_path / "a") == rebuilt_calm(whole, tmp_path / "b")
    assert replayed(lake, tmp_path / "c", AT)["differences"] == 0
    assert forgotten_before(DeltaTable(table_path(lake, EVENTS))) == DAY
    assert {kind for kind, _, _ in found_wrong(lake)} == {kind for kind, _, _ in found_wrong(whole)}


def rebuilt_calm(lake, folder):
    rebuild_checkpoint(
        lake, LocalFiles(str(folder)), SETTINGS, CONFIGURED, 1, lambda names: dict.fromkeys(names, 0), BOUNDS
    )
    [row] = pq.read_table(folder / "rebuilt" / "state.parquet").to_pylist()
    return unpack_topics(StoredPart(row[TOPICS])).topics, all_loads(unpack_loads(StoredPart(row[LOADS])))


@pytest.mark.parametrize(
    ("name", "reason"), [("clock set back", "clock was set back"), ("until midnight", "has not run since 2025-11-21")]
)
def test_no_horizon_without_a_midnight(copy_lake, tmp_path, name, reason):
    """The last batches are kept while the job is down."""
    with pytest.raises(RebuildError, match=reason):
        make_horizon(copy_lake(name, tmp_path / "lake"), AT, SETTINGS, CONFIGURED)


_KILLED = """
import os, signal, sys
from datetime import date, timedelta
from lake import retention, retention_filter
from schemas.tables.rows import BATCHES, EVENTS, HORIZONS, SEGMENT_LOAD

lake, moment = sys.argv[1:]
retention_filter.MARGIN = timedelta(0)
thin, checkpoint = retention._thin_files, retention.DeltaTable.create_checkpoint

def dies(*given):
    if moment == "before the commit":
        thin(*given)
    os.kill(os.getpid(), signal.SIGKILL)

if moment == "after the commit":
    retention.DeltaTable.create_checkpoint = dies
else:
    retention._thin_files = dies
retention.forget_rows(lake, SEGMENT_LOAD, date(2025, 11, 21), is_dry_run=False)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("moment", "is_done"),
    [
        pytest.param("at the begin", False, marks=pytest.mark.soak),
        ("before the commit", False),
        ("after the commit", True),
    ],
)
def test_kill_during_deletion_is_atomic(lake, tmp_path, moment, is_done):
    before, whole = stored(lake), rebuilt_calm(lake, tmp_path / "a")
    write_horizon(lake, make_horizon(lake, AT, SETTINGS, CONFIGURED))
    done = subprocess.run([sys.executable, "-c", _KILLED, lake, moment], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (stored(lake) != before) == is_done
    assert rebuilt_calm(lake, tmp_path / "b") == whole
    # The promise of the one that was killed is over after a quarter of an hour.
    OpenTable(create_table(lake, SEGMENT_LOAD)).append(arrow_schema(SEGMENT_LOAD.row).empty_table(), ALONE, 0)
    forget_rows(lake, SEGMENT_LOAD, DAY, is_dry_run=False)
    assert stored(lake) == sorted(row for row in before if row[1] >= -10)
    assert rebuilt_calm(lake, tmp_path / "c") == whole


def test_command_deletes_on_request_keeping_one_horizon(lake, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(f'[lake]\npath = "{lake}"\n')
    days = (datetime.now(timezone.utc).date() - DAY).days
    asked = ["--home", str(tmp_path), "--config", str(own), "lake", "retain", "segment_load", "--days", str(days)]
    before = stored(lake)
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    assert "nothing was changed: add --apply" in done.output
    assert stored(lake) == before
    write_horizon(lake, replace(make_horizon(lake, AT, SETTINGS, CONFIGURED), at=AT - timedelta(days=1)))
    done = CliRunner().invoke(cli, [*asked, "--apply"])
    assert done.exit_code == 0, done.output
    assert "forgotten" in done.output
    assert stored(lake) == sorted(row for row in before if row[1] >= -10)
    assert read_table(DeltaTable(table_path(lake, HORIZONS)), ["day"])["day"].unique().to_pylist() == [DAY]
    again = CliRunner().invoke(cli, [*asked, "--apply"])
    assert "0 rows of 0 days" in again.output
    refused = CliRunner().invoke(cli, [*asked, "--namespace", "acme"])
    assert refused.exit_code == 2
    assert "is not like tenant/namespace" in refused.output
    replayed_all = ["--home", str(tmp_path), "--config", str(own), "replay"]
    done = CliRunner().invoke(cli, replayed_all)
    assert done.exit_code == 0, done.output
    assert "rows before 2025-11-21 are forgotten: compared from there on" in done.output


def test_hourly_retention_waits_or_fails(copy_lake, tmp_path):
    """It waits for a lake, the job or a compaction; a record that it cannot use is an error."""
    lake, own = str(tmp_path / "lake"), tmp_path / "own.toml"
    days = (datetime.now(timezone.utc).date() - DAY).days
    own.write_text(f'[lake]\npath = "{lake}"\n' + CONFIGURED_RETENTION.format(whole=days, less=days - 1))

    def retain(*more):
        asked = ["--home", str(tmp_path), "--config", str(own), "lake", "retain", *more, "--apply"]
        done = CliRunner().invoke(cli, asked)
        return done.exit_code, done.output

    assert retain()[0] == 0
    copy_lake("until midnight", lake)
    code, said = retain()
    assert (code, "segment_load is left as it is for now: the job has not run since" in said) == (0, True)
    assert retain("segment_load", "--days", str(days))[0] == 1
    shutil.rmtree(lake)
    copy_lake("calm", lake)
    with exclude_others(lake, SEGMENT_LOAD):
        code, said = retain()
        assert (code, "segment_load is being compacted by another process" in said) == (0, True)
    shutil.rmtree(lake)
    copy_lake("clock set back", lake)
    code, said = retain()
    assert (code, "clock was set back" in said) == (1, True)
    damaged = Path(lake) / "segment_load" / "_delta_log" / f"{0:020}.json"
    damaged.write_text("{")
    assert retain()[0] == 3


@pytest.mark.process
def test_lake_is_looked_after_without_spark(copy_lake, tmp_path):
    """The container that does it every hour has no Spark."""
    lake = copy_lake("over two midnights", tmp_path / "lake")
    days = (datetime.now(timezone.utc).date() - DAY).days - 1
    own, hidden = tmp_path / "own.toml", tmp_path / "hidden"
    (tmp_path / "policy.toml").write_text("promptSplits = false\n")
    own.write_text(
        f'[lake]\npath = "{lake}"\n[policy]\ncluster = "{tmp_path}/policy.toml"\n'
        + CONFIGURED_RETENTION.format(whole=days, less=days)
    )
    for name in ("pyspark", "py4j", "delta", "pandas", "plotly"):
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").write_text(f"raise ModuleNotFoundError('{name} is hidden', name='{name}')\n")
    environment = {**os.environ, "PYTHONPATH": f"{hidden}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-m", "anabranch", "--home", str(tmp_path), "--config", str(own), "lake"]
    said = [
        subprocess.run([*command, *asked], env=environment, capture_output=True, text=True, timeout=300, check=False)
        for asked in (["optimize"], ["retain", "--apply"], ["vacuum"], ["check"])
    ]
    # Exit code 1: no executor has ended the decision on record.
    assert [done.returncode for done in said] == [0, 0, 0, 1], [done.stderr for done in said]
    # Four loads an hour until 17:30: the six hours before the days that are kept stay.
    assert "segment_load: 80 rows of 2 days before 2025-11-22" in said[1].stdout


CONFIGURED_RETENTION = """
[retention]
segment_load = {whole}
events = {whole}
holds = {whole}
decisions = 0
dead_letters = 0
batches = {whole}
[retention.namespaces."other/shop"]
segment_load = {less}
"""


def test_command_applies_the_configured_days(copy_lake, tmp_path):
    """Two midnights: nothing is kept of loads of other/shop before the second, and of anything before the first."""
    lake, whole = (copy_lake("from half hour to half hour", tmp_path / name) for name in ("lake", "whole"))
    today = datetime.now(timezone.utc).date()
    days = {"whole": (today - DAY).days, "less": (today - DAY).days - 1}
    own = tmp_path / "own.toml"
    (tmp_path / "policy.toml").write_text("promptSplits = false\n")
    own.write_text(
        f'[lake]\npath = "{lake}"\n[policy]\ncluster = "{tmp_path}/policy.toml"\n{CONFIGURED_RETENTION.format(**days)}'
    )
    asked = ["--home", str(tmp_path), "--config", str(own), "lake", "retain"]

    def batches():
        return read_table(DeltaTable(table_path(lake, BATCHES)), ["batch_at"])["batch_at"].to_pylist()

    before = stored(lake), batches()
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 0, done.output
    assert "nothing was changed: add --apply" in done.output
    assert (stored(lake), batches()) == before
    done = CliRunner().invoke(cli, [*asked, "--apply"])
    assert done.exit_code == 0, done.output
    newest = {
        topic: max(minute for name, minute in before[0] if name == topic and minute < 1440)
        for topic in (NAMES[0], OTHER)
    }
    kept = {NAMES[0]: 0, OTHER: 1440}
    assert {(name, minute) for name, minute in stored(lake) if minute < kept[name]} <= {
        (name, minute)
        for name, minute in before[0]
        if minute == newest[name] or minute == max(m for n, m in before[0] if n == name and m < 0)
    }
    assert [one for one in stored(lake) if one[1] >= kept[one[0]]] == [
        one for one in before[0] if one[1] >= kept[one[0]]
    ]
    assert sorted(one for one in batches() if one >= AT) == sorted(one for one in before[1] if one >= AT)
    assert 1 <= len([one for one in batches() if one < AT]) <= 2
    days_of_horizons = set(read_table(DeltaTable(table_path(lake, HORIZONS)), ["day"])["day"].to_pylist())
    assert days_of_horizons == {DAY, DAY + timedelta(days=1)}
    for name, at in ((NAMES[0], AT + timedelta(hours=7)), (OTHER, AT + timedelta(hours=24, minutes=30))):
        known, found = (explain(one, name, at, CONFIGURED) for one in (whole, lake))
        assert (found.snapshot, found.answer, found.doubts) == (known.snapshot, known.answer, known.doubts)
    for name, at in ((NAMES[0], AT - timedelta(hours=1)), (OTHER, AT + timedelta(hours=7))):
        with pytest.raises(NotOnRecord, match="are forgotten"):
            explain(lake, name, at, CONFIGURED)
    assert rebuilt_calm(lake, tmp_path / "a") == rebuilt_calm(whole, tmp_path / "b")
    again = CliRunner().invoke(cli, [*asked, "--apply"])
    assert (again.exit_code, again.output) == (0, ""), again.output


def test_newer_horizon_named_and_unused(lake, tmp_path):
    made = make_horizon(lake, AT, SETTINGS, CONFIGURED)
    newer = [piece._replace(topics=bytes([200]) + piece.topics[1:]) for piece in made.pieces]
    write_horizon(lake, replace(made, pieces=newer))
    forget_rows(lake, SEGMENT_LOAD, DAY, is_dry_run=False)
    with pytest.raises(RebuildError, match="rows before 2025-11-21 cannot be read: state version 200"):
        rebuilt_calm(lake, tmp_path / "a")
    with pytest.raises(NotOnRecord, match="state version 200"):
        explain(lake, NAMES[0], AT + timedelta(minutes=25), CONFIGURED)

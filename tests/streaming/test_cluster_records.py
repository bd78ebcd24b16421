"""Clusters with bundles in a lake: rebuilt, replayed, and their old rows forgotten. No JVM."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from hypothesis import Phase, assume, given

from anabranch.cli.main import cli
from anabranch.history.rebuild import rebuild_checkpoint
from anabranch.history.state_snapshots import make_horizon
from decisions.topic.layout import SegmentLayout
from engine.bundles.codec import pack, unpack
from engine.bundles.family import PART
from engine.families import bucket_engine, parts_of
from engine.kernel.packed import Packed, StoredPart
from engine.replay import RebuildError
from lake.files import read_table, table_path
from lake.retention import forget_rows
from lake.retention_filter import THINNED
from lake.state_snapshots import newest_horizon, write_horizon
from schemas.tables.rows import DECISIONS, EVENTS, HOLDS
from streaming.checkpoint.first_start import first_start
from streaming.checkpoint.storage import LocalFiles
from streaming.operator.processor import FINGERPRINT
from tests.engine.balancers import MINUTE, bundle, clusters_of, live, report, skewed
from tests.engine.buckets import CONFIGURED, SETTINGS, run
from tests.engine.records import layout, stats, tick
from tests.engine.test_bundles import MINUTES
from tests.engine.test_cluster_replay import changed, recorded
from tests.examples import examples
from tests.streaming.test_state_snapshots import AT, BOUNDS, DAY, MIDNIGHT, in_a_lake, without_margin

__all__ = ["without_margin"]
BUNDLES_TOO = replace(SETTINGS, bundles=True)
ALL_BOUNDS = {**BOUNDS, **{topic: {0: (0, 10**9)} for topic in ("broker-load", "broker-events")}}


def rebuilt(lake, folder, settings=BUNDLES_TOO):
    """The first bucket of two, which has all clusters, of a checkpoint that is made from a lake."""
    rebuild_checkpoint(
        lake, LocalFiles(str(folder)), settings, CONFIGURED, 2, lambda names: dict.fromkeys(names, 0), ALL_BOUNDS
    )
    first, second = pq.read_table(Path(folder) / "rebuilt" / "state.parquet").to_pylist()
    assert second.get(PART) is None
    return first


def bucket_of(row, settings=BUNDLES_TOO):
    return Packed(row[FINGERPRINT], {name: StoredPart(row[name] or b"") for name in parts_of(settings)})


def busy(minutes=range(-30, 30, 5)):
    """Two clusters around midnight, beside a topic: loads that come and go, moves that are not told to have ended."""
    bucket = recorded()
    begin = MIDNIGHT - 40 * MINUTE
    bucket.batch(begin, layout(SegmentLayout.create(2, begin)), stats({0: 1.0, 1: 1.0}, begin))
    for place, minute in enumerate(minutes):
        at = MIDNIGHT + minute * MINUTE
        others = [live(at, "broker-1:8080", "broker-2:8080", "broker-3:8080", cluster="east")] if place else []
        cold = report("broker-3:8080", {bundle(8): 10.0 * (place % 3)}, at, "east", cpu=45)
        bucket.batch(at, *skewed(at), *skewed(at, "east"), cold, *others, tick(at))
    return bucket


@pytest.fixture(scope="module")
def busy_bucket():
    return busy()


@pytest.fixture(scope="module")
def busy_lake(busy_bucket, tmp_path_factory):
    lake = tmp_path_factory.mktemp("busy") / "lake"
    in_a_lake(busy_bucket, lake)
    return lake


@pytest.fixture
def lake(busy_lake, tmp_path):
    return str(shutil.copytree(busy_lake, tmp_path / "lake"))


@pytest.fixture
def rows_of_busy(busy_bucket):
    """A bucket with the same rows, which a test may change."""
    bucket = copy.copy(busy_bucket)
    bucket.tables = {name: list(parts) for name, parts in busy_bucket.tables.items()}
    return bucket


def command(lake, tmp_path, *asked):
    own = tmp_path / "own.toml"
    (tmp_path / "policy.toml").write_text("promptSplits = false\n")
    own.write_text(f'[lake]\npath = "{lake}"\n[policy]\ncluster = "{tmp_path}/policy.toml"\n')
    return CliRunner().invoke(cli, ["--home", str(tmp_path), "--config", str(own), *asked])


def test_rebuilt_bucket_continues_its_clusters(lake, tmp_path):
    bucket = busy()
    row = rebuilt(lake, tmp_path / "checkpoint")
    assert pack(unpack(StoredPart(row[PART]))) == pack(clusters_of(bucket.packed))
    at = MIDNIGHT + 31 * MINUTE
    more = [*skewed(at), report("broker-3:8080", {bundle(7): 80.0}, at, "east", cpu=95), tick(at)]
    _, once = run(bucket_engine(BUNDLES_TOO), bucket_of(row), more, at)
    then = bucket.batch(at, *more)
    assert (once.decisions, once.holds) == (then.decisions, then.holds)
    start = first_start(LocalFiles(str(tmp_path / "checkpoint")))
    assert start.parts == parts_of(BUNDLES_TOO)
    assert int(start.starting_offsets["broker-load"][0]) > 0


def test_without_the_family_its_rows_are_passed_over(lake, tmp_path):
    row = rebuilt(lake, tmp_path / "checkpoint", SETTINGS)
    assert PART not in row
    assert first_start(LocalFiles(str(tmp_path / "checkpoint"))).parts == parts_of(SETTINGS)


def test_foreign_release_record_not_rebuilt(rows_of_busy, tmp_path):
    bucket = rows_of_busy
    changed(bucket, DECISIONS, "reason", "because")
    in_a_lake(bucket, tmp_path / "lake")
    with pytest.raises(RebuildError, match=r"the cluster east at 2025-11-20 23:30:00 UTC: decision 1: reason was beca"):
        rebuilt(str(tmp_path / "lake"), tmp_path / "checkpoint")


@given(MINUTES, MINUTES)
@examples(1, phases=[Phase.explicit, Phase.generate])
def test_clusters_rebuilt_despite_deleted_rows(before, after):
    """They are also replayed as before."""
    # Hypothesis begins with the simplest of all, which shows little.
    assume(all(len(minutes) > 1 and any(minutes) for minutes in (before, after)))
    bucket = recorded()
    ends = MIDNIGHT - 10 * MINUTE
    for begin, minutes in ((ends, before), (MIDNIGHT, after)):
        for number, messages in enumerate(minutes):
            ends = begin + number * MINUTE
            bucket.batch(ends, *messages, tick(ends))
    with TemporaryDirectory() as folder:
        lake = f"{folder}/lake"
        in_a_lake(bucket, lake)
        whole, places = rebuilt(lake, f"{folder}/a"), events(lake)
        write_horizon(lake, make_horizon(lake, AT, SETTINGS, CONFIGURED))
        for table in THINNED:
            forget_rows(lake, table, DAY, is_dry_run=False)
        newest = {key: at for key, at in sorted(places, key=itemgetter(1)) if at < AT}
        assert events(lake) == [(key, at) for key, at in places if at >= AT or at == newest[key]]
        assert rebuilt(lake, f"{folder}/b") == whole
        done = command(lake, Path(folder), "replay", "--output", "json")
        found = json.loads(done.stdout.splitlines()[0])
        # A replay that had nothing to compare fails.
        assert done.exit_code == (0 if found["decisions"] + found["holds"] + found["evaluations"] else 1), done.output
        rows = [row for table in (DECISIONS, HOLDS) for row in bucket.table(table).to_pylist()]
        later = [row for row in rows if row["day"] >= DAY] if "are forgotten" in done.output else rows
        assert found["decisions"] + found["holds"] == len(later)


def events(lake):
    """What each is about, and when it came."""
    rows = read_table(DeltaTable(table_path(lake, EVENTS)), ["subject", "type", "cause", "accepted_at"]).to_pylist()
    return sorted(((row["subject"], row["type"], str(row["cause"])), row["accepted_at"]) for row in rows)


def test_a_replay_says_what_is_the_same_and_of_whom(busy_bucket, lake, tmp_path):
    bucket = busy_bucket
    of_clusters = [row for row in bucket.table(DECISIONS).to_pylist() if row["family"] == "bundles"]
    every = json.loads(command(lake, tmp_path, "replay", "--output", "json").stdout)
    assert every["decisions"] == bucket.table(DECISIONS).num_rows
    assert every["differences"] == 0
    one = json.loads(command(lake, tmp_path, "replay", "--clusters", "east", "--output", "json").stdout)
    assert one["decisions"] == sum(row["subject"] == "east" for row in of_clusters) > 0
    assert (one["differences"], one["evaluations"]) == (0, 12)
    unknown = command(lake, tmp_path, "replay", "--clusters", "north")
    assert unknown.exit_code == 1
    assert "nothing of a cluster north is on record" in unknown.output


def test_replay_names_differing_cluster(rows_of_busy, tmp_path):
    bucket = rows_of_busy
    changed(bucket, HOLDS, "gate", "nothing")
    in_a_lake(bucket, tmp_path / "lake")
    done = command(str(tmp_path / "lake"), tmp_path, "replay")
    assert done.exit_code == 1
    assert (
        "different: cluster east at 2025-11-20 23:30:00 UTC: hold 1 of east/broker-2:8080: gate was no" in done.output
    )


def test_horizon_without_clusters_not_continued(lake, tmp_path):
    made = make_horizon(lake, AT, SETTINGS, CONFIGURED)
    write_horizon(lake, made)
    for table in THINNED:
        forget_rows(lake, table, DAY, is_dry_run=False)
    write_horizon(lake, replace(made, clusters=None))
    assert newest_horizon(lake, ["first"]).clusters is None
    with pytest.raises(RebuildError, match="kept nothing of clusters with bundles"):
        rebuilt(lake, tmp_path / "checkpoint")


def test_a_lake_without_clusters_has_nothing_of_them(tmp_path):
    bucket = recorded()
    for minute in (-2, -1, 1):
        at = MIDNIGHT + minute * MINUTE
        bucket.batch(at, stats({0: 1.0}, at), tick(at))
    in_a_lake(bucket, tmp_path / "lake")
    row = rebuilt(str(tmp_path / "lake"), tmp_path / "checkpoint")
    assert row[PART] is None
    assert unpack(StoredPart(make_horizon(str(tmp_path / "lake"), AT, SETTINGS, CONFIGURED).clusters)) == {}

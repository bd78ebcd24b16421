"""Why a bundle was moved and why a broker is idle, in two commands, from the rows that the job's own engine writes."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from anabranch.cli.main import cli
from anabranch.history.bundles import record
from lake.tables import create_table
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS
from tests.engine.balancers import BOTH, MINUTE, NOW, bundle, bundle_rows, ended, report, skewed
from tests.engine.records import tick
from tests.engine.test_replay import RecordedBucket


class Recorded(RecordedBucket):
    """A bucket of both families; its outputs are kept."""

    def __init__(self):
        super().__init__()
        self.outputs, self.families = [], BOTH
        self.restart()

    def batch(self, now, *records):
        self.outputs.append(super().batch(now, *records))
        return self.outputs[-1]


@pytest.fixture(scope="module")
def bucket():
    """Two clusters of which one broker each is hot; `west` has a third broker that never gets anything."""
    bucket = Recorded()
    third = report("broker-3:8080", {bundle(20): 0.5}, NOW, cpu=4)
    bucket.batch(NOW, *skewed(NOW), *skewed(NOW, "east"), third)
    first = bucket.batch(NOW + 1, tick(1))
    west = next(row for row in first.decisions if row["subject"] == "west")
    bucket.batch(NOW + MINUTE, ended(west), report("broker-1:8080", {bundle(0): 5.0}, NOW + MINUTE, cpu=30))
    bucket.batch(NOW + MINUTE + 1, tick(2))
    bucket.batch(NOW + 2 * MINUTE, tick(3))
    return bucket


@pytest.fixture(scope="module")
def lake(bucket, tmp_path_factory):
    lake = tmp_path_factory.mktemp("lake")
    for table in (EVENTS, DECISIONS, HOLDS, BATCHES):
        write_deltalake(create_table(str(lake), table), bucket.table(table), mode="append")
    (lake / "settings.toml").write_text(f'[lake]\npath = "{lake}"\n')
    return lake


def ask(lake, *arguments):
    return CliRunner().invoke(cli, ["-c", str(lake / "settings.toml"), "bundles", "explain", *arguments])


def decided(bucket, cluster="west"):
    return [
        row
        for output in bucket.outputs
        for row in bundle_rows(output)
        if row["subject"] == cluster and "decision_id" in row
    ]


def test_bundle_move_explained_with_gates_and_brokers(bucket, lake):
    row, _ = decided(bucket)
    name = json.loads(row["arguments"])["bundle"]
    said = ask(lake, "west", "--bundle", name, "--at", "2025-11-20T17:33:00Z")
    assert said.exit_code == 0, said.output
    to = json.loads(row["arguments"])["destinationBroker"]
    assert f"unload {name} from broker-1:8080 to {to}, because of ThresholdShedder" in said.output
    assert re.search(r"broker-1:8080: .*maxUsage 0\.8", said.output)
    assert re.search(r"\+ +broker-1:8080 +above-average +0\.8", said.output)
    assert row["decision_id"] in said.output
    whole = json.loads(ask(lake, "west", "--bundle", name, "--output", "json").output)
    assert whole["decision_id"] == row["decision_id"]


def test_idle_broker_explained_by_repeated_cycle(lake):
    said = ask(lake, "west", "--broker", "broker-3:8080")
    assert said.exit_code == 0, said.output
    assert "nothing was decided" in said.output
    assert "it gets nothing by unloading, for no other broker was to give" in said.output
    assert re.search(r"broker-3:8080: maxUsage 0\.[1-9]", said.output), "with the bundle that is on its way to it"
    assert re.search(r"- +broker-3:8080 +above-average", said.output)
    assert not re.search(r"broker-1:8080 +above-average", said.output)
    assert "note:" not in said.output


def test_earlier_cycle_explained_as_recorded(bucket, lake):
    row, _ = decided(bucket)
    said = ask(lake, "west", "--at", "2025-11-20T17:33:00Z")
    assert f"unload {json.loads(row['arguments'])['bundle']} from broker-1:8080" in said.output
    assert "note:" not in said.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("west", "--bundle", "acme/shop/none"), "no decision about acme/shop/none of west is on record"),
        (("north",), "no cycle of a cluster north is on record"),
        (("west", "--broker", "broker-9:8080"), "no report of broker-9:8080 is on record"),
        (("west", "--at", "2020-01-01T00:00:00Z"), "on record up to then"),
        (("west", "--bundle", "a", "--broker", "b"), "ask one at a time"),
    ],
)
def test_what_is_not_on_record_is_said(lake, arguments, words):
    said = ask(lake, *arguments)
    assert said.exit_code != 0
    assert words in said.output


def test_rows_outside_the_cycle_reported(bucket, tmp_path):
    for table in (EVENTS, BATCHES):
        write_deltalake(create_table(str(tmp_path), table), bucket.table(table), mode="append")
    (tmp_path / "settings.toml").write_text(f'[lake]\npath = "{tmp_path}"\n')
    said = ask(tmp_path, "west", "--at", "2025-11-20T17:33:00Z")
    assert "note: this is otherwise on record: decision 1 is not on record, and this release says unload" in said.output


@pytest.fixture(scope="module")
def long_record(tmp_path_factory):
    """Three hours of a cluster: a hot broker whose moves are told to have ended, and one that joins late."""
    lake = str(tmp_path_factory.mktemp("long"))
    bucket, before = Recorded(), []
    for minute in range(0, 180, 2):
        at = NOW + minute * MINUTE
        moved = [ended(row) for row in before]
        third = [report("broker-3:8080", {bundle(8): 1.0 + minute % 7}, at, cpu=4 + minute % 5)] if minute > 100 else []
        bucket.batch(at, *skewed(at), *third, *moved)
        before = bucket.batch(at + 1, tick(minute)).decisions
    for table in (EVENTS, DECISIONS, HOLDS, BATCHES):
        write_deltalake(create_table(lake, table), bucket.table(table), mode="append")
    return lake


def test_last_two_hours_lead_to_full_result(long_record, monkeypatch):
    lake = long_record
    whole = record.last_cycle(lake, "west", None)
    monkeypatch.setattr(record, "FEW_REPORTS", 100)
    late, exact = record.last_cycle(lake, "west", None), record.last_cycle(lake, "west", None, is_exact=True)
    assert (whole.since, exact.since) == (None, None)
    assert late.since is not None
    assert [one.doubt for one in (whole, late, exact)] == [None] * 3
    assert exact.cycle == whole.cycle
    assert (late.cycle.now, late.cycle.live) == (whole.cycle.now, whole.cycle.live)
    assert [(one.number, one.decision_id) for one in late.cycle.decided] == [
        (one.number, one.decision_id) for one in whole.cycle.decided
    ]
    gates = [
        [(one.gate, one.passed, one.broker, one.bundle) for one in known.cycle.shedding.readings]
        for known in (whole, late)
    ]
    assert gates[0] == gates[1]


def test_insufficient_two_hours_replay_whole_record(long_record, monkeypatch):
    monkeypatch.setattr(record, "FEW_REPORTS", 100)
    monkeypatch.setattr(record, "_that_matter", lambda different, begin: ["something"])
    assert record.last_cycle(long_record, "west", None).since is None

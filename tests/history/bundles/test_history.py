"""A cluster's brokers over time, as text, JSON and a picture."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.main import cli
from anabranch.history.bundles.history import bars, columns, history
from anabranch.history.bundles.picture import picture
from anabranch.query.sql import LakeSql
from lake.tables import create_lake
from schemas.tables.rows import BATCHES, EVENTS
from tests.engine.balancers import BOTH, MINUTE, NOW, bundle, extensible
from tests.engine.records import tick
from tests.engine.test_replay import RecordedBucket
from tests.query.views.recorded_cluster import BROKERS, JOINS, recorded_cluster

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def story():
    return recorded_cluster()


@pytest.fixture(scope="module")
def lake(story, tmp_path_factory):
    folder = tmp_path_factory.mktemp("history")
    lake = story.write(folder / "lake")
    (folder / "own.toml").write_text(f'[lake]\npath = "{lake}"\n')
    return folder


def asked(lake, *words):
    return CliRunner().invoke(cli, ["-c", str(lake / "own.toml"), "bundles", "history", *words])


def test_usage_and_applied_moves_are_shown(story, lake):
    found = history(str(lake / "lake"), "west")
    assert list(found.brokers) == BROKERS
    there = np.isfinite(found.usage)
    assert there[:, :2].all()
    assert (~there[:, 2]).sum() == pytest.approx(JOINS, abs=1)
    applied = sorted(json.loads(one["seen"])["bundles"][0] for one in story.outcomes if one["status"] == "applied")
    assert sorted(one.bundle for one in found.moves) == applied


def test_reports_of_the_extensible_manager_are_shown(tmp_path):
    bucket, made = RecordedBucket(families=BOTH), create_lake(tmp_path / "lake")
    for minute in range(10):
        at, moved = NOW + minute * MINUTE, {bundle(1): 10.0 + minute}
        loads = [{bundle(0): 30.0 + minute}, {bundle(2): 5.0}]
        loads[minute >= 5] |= moved
        reports = [
            extensible(f"broker-{place}:8080", load, at, usage=0.01 * sum(load.values()))
            for place, load in enumerate(loads)
        ]
        bucket.batch(at, *reports, tick(minute))
    for table in (EVENTS, BATCHES):
        write_deltalake(made[table.name], bucket.table(table), mode="append")
    lake = str(tmp_path / "lake")
    found = history(lake, "west")
    assert [(one.bundle, one.source, one.destination) for one in found.moves] == [
        (bundle(1), "broker-0:8080", "broker-1:8080")
    ]
    assert {one.bundle for one in found.now} == {bundle(0), bundle(1), bundle(2)}
    rows = LakeSql(lake).ask("SELECT broker, usage, bundles FROM broker_usage ORDER BY accepted_at, broker").read_all()
    first = rows.to_pylist()[:2]
    assert [(row["broker"], round(row["usage"], 3), row["bundles"]) for row in first] == [
        ("broker-0:8080", 0.4, 2),
        ("broker-1:8080", 0.05, 1),
    ]


def test_command_draws_brokers_and_newest_moves(lake):
    done = asked(lake, "west", "--limit", "2")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == BROKERS
    assert lines[3].split()[1].startswith("·")
    assert lines[4] == "10 moves, the newest 2"
    assert len(lines) == 7
    whole = json.loads(asked(lake, "west", "--output", "json").stdout)
    assert whole["brokers"][2]["usage"][0] is None
    assert len(whole["moves"]) == 10


def test_picture_has_broker_bands_and_move_arrows(lake, tmp_path):
    done = asked(lake, "west", "--svg", str(tmp_path / "west.svg"))
    assert done.exit_code == 0, done.output
    root = ElementTree.parse(tmp_path / "west.svg").getroot()
    assert len(root.findall(f".//{_SVG}path[@class='move']")) == 10
    assert {one.text for one in root.findall(f"{_SVG}text[@class='end']")} == set(BROKERS)
    assert root.findall(f"{_SVG}rect[@class='away']")


def test_hostile_names_stay_text_in_the_picture(lake):
    found = history(str(lake / "lake"), "west")
    hostile = picture(type(found)("<script>", found.since, found.until, ["</svg><b>&", *BROKERS[1:]], found.usage, []))
    assert "<script>" not in hostile
    assert ElementTree.fromstring(hostile).tag == f"{_SVG}svg"


def test_a_cluster_that_is_not_on_record_is_said(lake):
    done = asked(lake, "north")
    assert (done.exit_code, "no report of a broker" in done.output) == (1, True)


@given(st.lists(st.one_of(st.floats(0, 2), st.just(float("nan"))), min_size=1, max_size=40), st.integers(1, 50))
def test_columns_average_and_bars_rise_with_mean(values, most):
    usage = np.array(values)[:, None]
    means = columns(usage, most)[:, 0]
    assert len(means) == min(most, len(values))
    for mean, group in zip(means, np.array_split(usage[:, 0], len(means)), strict=True):
        there = group[np.isfinite(group)]
        assert (np.isnan(mean) and not len(there)) or mean == pytest.approx(there.mean())
    levels = ["·▁▂▃▄▅▆▇█".index(one) for one in bars(sorted(value for value in values if value == value))]
    assert levels == sorted(levels)

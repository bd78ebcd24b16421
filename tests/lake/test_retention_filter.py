"""Which old decisions, holds and events stay, against brute force."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.cli.commands.lake_retain import _drop_horizons
from anabranch.cli.main import cli
from lake import retention_filter
from lake.files import read_table, table_path
from lake.forgotten import is_marked, midnight_of, retained_from, retention_marks
from lake.retention import forget_rows
from lake.state_snapshots import Horizon, SnapshotPiece, write_horizon
from lake.tail import Tail
from schemas.tables.rows import BATCHES, DECISIONS, EVENTS, HOLDS, HORIZONS, OUTCOMES
from tests.examples import examples
from tests.local.lake import (
    at,
    batch,
    consumer_event,
    decision,
    hold,
    layout_event,
    layout_json,
    outcome,
    policy_event,
    write,
)

DAY = date(2026, 11, 21)
MIDNIGHT = 43_200
"""Seconds of the test's time."""
TOPICS = ["topic://acme/shop/a", "topic://acme/shop/b", "topic://other/shop/c", "topic://acme/shopping/d"]
"""The last two are of other namespaces; the name of one begins with that of the first."""
SECONDS = st.integers(0, 2 * MIDNIGHT)


@pytest.fixture(autouse=True, scope="module")
def without_margin():
    """Rows right before midnight are old here: no hours before the days that are kept stay."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(retention_filter, "MARGIN", timedelta(0))
        yield


def ready(lake):
    at = datetime(2026, 11, 21, tzinfo=timezone.utc)
    write_horizon(lake, Horizon(at, "g", {}, frozenset(), [SnapshotPiece(b"", b"")], b""))


def consumers(subscription, number, seconds):
    """As this release writes them."""
    return consumer_event(subscription, number, seconds).model_copy(update={"subscription": subscription})


def stored(lake, table, column):
    return sorted(read_table(DeltaTable(table_path(lake, table)), [column])[column].to_pylist())


@examples(4)
@given(
    st.lists(st.tuples(st.sampled_from(TOPICS), SECONDS, st.none() | SECONDS), min_size=1, max_size=8), st.booleans()
)
@example([(topic, second, 1) for topic in TOPICS for second in (0, 10)], True)
@example([(TOPICS[0], 0, MIDNIGHT), (TOPICS[0], 10, 1)], False)
def test_open_and_newest_decisions_stay_with_outcomes(made, is_of_one):
    """The newest of each topic stays."""
    with TemporaryDirectory() as lake:
        ready(lake)
        namespaces = ["acme/shop"] if is_of_one else []
        rows = [
            (f"d{number}", topic, at, None if ends is None else at + ends)
            for number, (topic, at, ends) in enumerate(made)
        ]
        for number, (identity, topic, at, ends) in enumerate(rows):
            write(lake, decision(at, number + 1, decision_id=identity, subject=topic))
            write(lake, outcome(identity, "intent", at, subject=topic))
            if ends is not None:
                status = ("applied", "failed", "rejected", "superseded", "observed")[number % 5]
                write(lake, outcome(identity, status, ends, subject=topic))
        for table in (DECISIONS, OUTCOMES):
            forget_rows(lake, table, DAY, is_dry_run=False, namespaces=namespaces)
        newest = {
            topic: max(at for _, its, at, _ in rows if its == topic and at < MIDNIGHT)
            for _, topic, at, _ in rows
            if at < MIDNIGHT
        }
        stay = [
            row
            for row in rows
            if row[2] >= MIDNIGHT
            or row[3] is None
            or row[3] >= MIDNIGHT
            or newest[row[1]] == row[2]
            or (namespaces and row[1] in TOPICS[2:])
        ]
        # Of several decisions of a topic at one instant at least one stays.
        certain = {
            row[0] for row in stay if sum(one[1:3] == row[1:3] for one in rows) == 1 or row[2] != newest.get(row[1])
        }
        assert certain <= set(stored(lake, DECISIONS, "decision_id")) <= {row[0] for row in stay}
        there = set(stored(lake, DECISIONS, "decision_id"))
        told = [identity for identity, _, _, ends in rows for _ in range(1 if ends is None else 2)]
        assert stored(lake, OUTCOMES, "decision_id") == sorted(identity for identity in told if identity in there)


def test_row_at_the_margin_itself_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(retention_filter, "MARGIN", timedelta(hours=1))
    lake, since = str(tmp_path), MIDNIGHT - 3600
    ready(lake)
    write(lake, *(hold(second, subject=TOPICS[0]) for second in (since - 1, since, since + 1)))
    for number, second in enumerate((since - 1, since, since + 1), 1):
        write(lake, decision(second, number), outcome(f"d{number}", "applied", second))
    assert forget_rows(lake, OUTCOMES, DAY, is_dry_run=True).rows == 1
    for table in (HOLDS, DECISIONS):
        assert forget_rows(lake, table, DAY, is_dry_run=False).rows == 1
    assert stored(lake, HOLDS, "since") == [at(since), at(since + 1)]
    assert stored(lake, DECISIONS, "decision_id") == ["d2", "d3"]


def test_first_row_of_each_sender_stays_only_beside_a_late_deletion():
    topics = {
        TOPICS[0]: [(1, False), (1, False), (2, True)],
        TOPICS[1]: [(1, False), (2, False), (2, False), (1, True)],
    }
    rows = [(topic, *row) for topic, rows in topics.items() for row in rows]
    layouts = pa.table(dict(zip(("subject", "sender", "ends"), map(list, zip(*rows, strict=True)), strict=True)))
    stays = retention_filter._make_deletions_late(layouts).to_pylist()
    assert stays == [False, False, False, True, True, False, False]


def test_outcomes_do_not_go_before_their_decisions(tmp_path):
    lake = str(tmp_path)
    ready(lake)
    for number in range(3):
        write(lake, decision(number, number + 1), outcome(f"d{number + 1}", "applied", number + 10))
    assert forget_rows(lake, OUTCOMES, DAY, is_dry_run=True).rows == 2
    assert forget_rows(lake, OUTCOMES, DAY, is_dry_run=False).rows == 0
    assert forget_rows(lake, DECISIONS, DAY, is_dry_run=False).rows == 2
    assert forget_rows(lake, OUTCOMES, DAY, is_dry_run=False).rows == 2
    assert stored(lake, DECISIONS, "decision_id") == stored(lake, OUTCOMES, "decision_id") == ["d3"]


def test_rows_stay_from_the_first_instant_of_the_margin(tmp_path, monkeypatch):
    monkeypatch.setattr(retention_filter, "MARGIN", timedelta(hours=6))
    lake, begins = str(tmp_path), MIDNIGHT - 6 * 3600
    ready(lake)
    write(lake, *[hold(begins + number - 2, seq=number) for number in (1, 2, 3)])
    forget_rows(lake, HOLDS, DAY, is_dry_run=False)
    assert stored(lake, HOLDS, "seq") == [2, 3]


def test_newest_events_holds_and_policies_stay(tmp_path):
    lake = str(tmp_path)
    ready(lake)
    layout = layout_json((0, 0, 65_535))
    write(
        lake,
        policy_event(1),
        policy_event(2),
        layout_event(layout, 3),
        layout_event(layout, 4),
        layout_event(layout, 13),
        layout_event(layout, 5, "snapshot"),
        consumers("a", 1, 6),
        consumers("a", 2, 7),
        consumers("b", 1, 8),
        consumers("a", 3, MIDNIGHT + 1),
        consumer_event("older", 1, 11),
        consumer_event("older", 2, 12),
        layout_event(layout, 9, topic="cluster-a"),
        layout_event(layout, 10, topic="cluster-a"),
        hold(1),
        hold(2, "cooldown", 2),
        hold(3, "in-flight", 3, subject="cluster-a", family="bundles"),
        hold(4, "in-flight", 4, subject="cluster-a", family="bundles"),
        hold(MIDNIGHT, "split-load", 5),
        hold(3, "in-flight", 6, subject="cluster-a", family="bookies"),
    )
    for table in (EVENTS, HOLDS):
        planned = forget_rows(lake, table, DAY, is_dry_run=True)
        done = forget_rows(lake, table, DAY, is_dry_run=False)
        assert (done.rows, done.files, done.days) == (planned.rows, planned.files, planned.days)
        assert forget_rows(lake, table, DAY, is_dry_run=True).rows == 0
    kept = [one // 1000 for one in stored(lake, EVENTS, "kafka_offset")]
    # Of the layouts the newest of each cause, and the first of the epoch: since then it stands.
    assert kept == [1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13, MIDNIGHT + 1]
    assert stored(lake, HOLDS, "seq") == [2, 4, 5, 6]


def test_batches_stay_from_the_day_of_the_newest_kept_rows(tmp_path):
    lake, later = str(tmp_path), DAY + timedelta(days=2)
    write_horizon(lake, Horizon(midnight_of(later), "g", {}, frozenset(), [SnapshotPiece(b"", b"")], b""))
    seconds = [*range(0, MIDNIGHT, 10_000), *range(MIDNIGHT, 3 * MIDNIGHT, 10_000)]
    write(lake, hold(0), hold(1, seq=2), *(batch(number, second) for number, second in enumerate(seconds)))
    assert forget_rows(lake, HOLDS, DAY, is_dry_run=False).rows == 1
    forget_rows(lake, BATCHES, later, is_dry_run=False)
    kept = stored(lake, BATCHES, "batch_id")
    assert len(kept) < len(seconds)
    assert {number for number, second in enumerate(seconds) if second >= MIDNIGHT} <= {*kept}


def test_dry_run_counts_batches_as_after_the_other_cuts(tmp_path):
    lake, own, days = str(tmp_path / "lake"), tmp_path / "own.toml", (datetime.now(timezone.utc).date() - DAY).days
    write(
        lake, hold(0), hold(1, seq=2), *(batch(number, second) for number, second in enumerate(range(0, 90_000, 9_000)))
    )
    kept = "".join(f"{name} = {days}\n" for name in ("segment_load", "events", "holds", "decisions", "batches"))
    own.write_text(f'[lake]\npath = "{lake}"\n[retention]\n{kept}')
    done = CliRunner().invoke(cli, ["--home", str(tmp_path), "--config", str(own), "lake", "retain"])
    assert done.exit_code == 0, done.output
    assert re.search(r"^batches: [1-9]\d* rows of 1 days before 2026-11-21 ", done.output, re.MULTILINE), done.output


def test_horizon_of_clusters_stays_where_every_namespace_is_cut_later(tmp_path):
    lake, days = str(tmp_path), [DAY, DAY + timedelta(days=1), DAY + timedelta(days=2)]
    for day in days:
        write_horizon(lake, Horizon(midnight_of(day), "g", {}, frozenset(), [SnapshotPiece(b"", b"")], b""))
    seconds = (0, 1, MIDNIGHT, MIDNIGHT + 1, 3 * MIDNIGHT, 3 * MIDNIGHT + 1)
    write(lake, *(hold(second, seq=number, subject=TOPICS[0]) for number, second in enumerate(seconds)))
    assert forget_rows(lake, HOLDS, days[0], is_dry_run=False).rows
    assert forget_rows(lake, HOLDS, days[2], is_dry_run=False, namespaces=["acme/shop"]).rows
    _drop_horizons(lake)
    assert {*stored(lake, HORIZONS, "day")} == {days[0], days[2]}


def test_marks_never_go_back(tmp_path):
    lake, earlier = str(tmp_path), DAY - timedelta(days=1)
    ready(lake)
    write(lake, hold(0), hold(1, seq=2), hold(0, seq=3, subject=TOPICS[2]), hold(1, seq=4, subject=TOPICS[2]))
    forget_rows(lake, HOLDS, DAY, is_dry_run=False, namespaces=["acme/shop"])
    delta = DeltaTable(table_path(lake, HOLDS))
    marks = retention_marks(delta, earlier, ["acme/shop"])
    assert {mark.version for mark in marks} == {(DAY - date(1970, 1, 1)).days}
    assert is_marked(delta, DAY, ["acme/shop"])
    # Of two namespaces both must be cut.
    assert not is_marked(delta, DAY, ["acme/shop", "other/shop"])
    assert not is_marked(delta, DAY)
    # Clusters are in no namespace.
    assert retained_from(lake, ()) is None
    write(lake, hold(0, seq=5), hold(0, seq=6))
    forget_rows(lake, HOLDS, DAY, is_dry_run=False)
    assert retained_from(lake, ()) == midnight_of(DAY)


def test_rows_that_stay_are_nothing_new_to_a_follower(tmp_path):
    lake = str(tmp_path)
    ready(lake)
    write(lake, hold(0), hold(1, seq=2), hold(0, seq=3, subject=TOPICS[2]))
    tail = Tail(lake, HOLDS, ["seq"])
    assert sorted(row["seq"] for row in tail.read()) == [1, 2, 3]
    assert forget_rows(lake, HOLDS, DAY, is_dry_run=False).rows == 1
    assert stored(lake, HOLDS, "seq") == [2, 3]
    assert tail.read() == []


def test_chunked_file_keeps_newest_of_each_topic(tmp_path):
    lake, number = str(tmp_path), 9_000
    ready(lake)
    one = hold(1)
    write(
        lake,
        *(
            one.model_copy(
                update={"subject": TOPICS[seq % 2 if seq > number // 2 else 2], "seq": seq, "since": at(seq)}
            )
            for seq in range(number)
        ),
    )
    assert forget_rows(lake, HOLDS, DAY, is_dry_run=False).rows == number - 3
    assert stored(lake, HOLDS, "seq") == [number // 2, number - 2, number - 1]

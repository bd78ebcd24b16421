"""Views of kept days say the same before and after old rows are forgotten, of topics made again and late news too."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, assume, given
from hypothesis import strategies as st

from anabranch.query.sql import LakeSql
from lake import retention_filter
from lake.retention import forget_rows
from lake.state_snapshots import Horizon, SnapshotPiece, write_horizon
from schemas.tables.rows import DECISIONS, EVENTS, OUTCOMES, SEGMENT_LOAD
from tests.examples import examples, only_first
from tests.local.lake import at, batch, consumer_event, decision, event, layout_json, load, millis, outcome, write

DAY = date(2026, 11, 21)
MIDNIGHT = 43_200
"""Seconds of the test's time."""
ANOTHER, SECOND = "topic://acme/shop/again", "topic://other/shop/c"
FORMS = ("said", "silent", "older", "older and said")
"""An announcement with its life or not, in columns or as older releases wrote it."""
STEPS = st.lists(
    st.tuples(
        st.sampled_from([ANOTHER, ANOTHER, SECOND]),
        st.sampled_from(["create", "split", "again", "delete", "create", "late", "late", "consumers"]),
        st.integers(1, 4_000),
        st.integers(0, 40),
    ),
    min_size=8,
    max_size=40,
)


def ready(lake):
    midnight = datetime(2026, 11, 21, tzinfo=timezone.utc)
    write_horizon(lake, Horizon(midnight, "g", {}, frozenset(), [SnapshotPiece(b"", b"")], b""))


def announced(topic, cause, epoch, life, seconds, form):
    """An announcement as it is on record: with its life or not, in columns or as older releases wrote it."""
    layout = layout_json(
        *((10 * epoch + part, part * 0x4000, part * 0x4000 + 0x3FFF) for part in range(4)), epoch=epoch
    )
    body = {"v": 1, "type": "layout", "topic": topic, "cause": cause, "layout": layout, "at": millis(seconds)}
    said = life if form in ("said", "older and said") else None
    if said is not None:
        body["topicCreatedAt"] = said
    columns = (
        {} if form.startswith("older") else {"in_columns": True, "life": said, "epoch": epoch, "active_segments": 4}
    )
    return event("layout", body, seconds, **columns)


def told(steps, form):
    """The rows of a story of which about half is before midnight."""
    rows, seconds, lives, news = [], 0, {}, {}
    for topic, what, pause, pick in steps:
        seconds += pause
        epoch, life = lives.get(topic, (None, None))
        if what == "create" and epoch is None:
            lives[topic] = epoch, life = 0, millis(seconds)
            one = ("created", epoch, life)
        elif what == "late" and news.get(topic):
            rows.append(announced(topic, *news[topic][pick % len(news[topic])], seconds, form))
            continue
        elif what == "consumers":
            name = "sub-" + "ab"[pick % 2]
            number = pick % 9
            said = {"in_columns": True, "subscription": name, "subscription_type": "STREAM", "consumers": number}
            rows.append(consumer_event(name, number, seconds, topic=topic).model_copy(update=said))
            continue
        elif epoch is None:
            continue
        elif what == "split":
            lives[topic] = epoch + 1, life
            one = ("split", epoch + 1, life)
        elif what == "delete":
            lives[topic] = None, None
            one = ("deleted", epoch, life)
        else:
            one = ("snapshot", epoch, life)
        news.setdefault(topic, []).append(one)
        rows.append(announced(topic, *one, seconds, form))
    return rows


def kept_days(lake, instants=(0,)):
    """What the views say of the kept days; what began before them is said to begin with them."""
    sql, found = LakeSql(lake, at(5 * MIDNIGHT)), {}
    midnight = at(MIDNIGHT)
    for view, begin, end in (
        ("layout_spans", "valid_from", "valid_to"),
        ("consumers_waiting", "waiting_from", "waiting_to"),
    ):
        rows = sql.rows(f"SELECT * FROM {view}", is_own=True)
        found[view] = sorted(
            str({**row, "consumer_seconds": None, begin: max(row[begin], midnight)})
            for row in rows
            if row[end] is None or row[end] > midnight
        )
    for seconds in instants:
        instant = f"TIMESTAMP '{at(MIDNIGHT + seconds):%Y-%m-%dT%H:%M:%SZ}'"
        found[seconds] = sorted(map(str, sql.rows(f"SELECT * FROM layout_at({instant})", is_own=True)))
    return found


@pytest.mark.timeout(900)
@examples(2, phases=[Phase.explicit, Phase.generate])
@given(stories=st.tuples(*[STEPS] * len(FORMS)))
def test_layouts_and_consumers_of_kept_days_stay(stories):
    """One lake holds a story of each form, with topics of its own."""
    # Hypothesis begins with the simplest of all, which shows little.
    assume(all(len({step for _, step, *_ in steps}) > 3 for steps in stories))
    instants = (0, 10_000, 40_000)
    with TemporaryDirectory() as lake, pytest.MonkeyPatch.context() as patched:
        patched.setattr(retention_filter, "MARGIN", timedelta(0))
        ready(lake)
        write(lake, batch(1, 5 * MIDNIGHT))
        for number, (form, steps) in enumerate(zip(FORMS, stories, strict=True)):
            write(lake, *told([(f"{topic}-{number}", *step) for topic, *step in steps], form))
        before = kept_days(lake, instants)
        forget_rows(lake, EVENTS, DAY, is_dry_run=False)
        assert kept_days(lake, instants) == before


@pytest.mark.parametrize("form", only_first(2, ["said", "older", "silent", "older and said"]))
def test_highest_epoch_stays_beside_a_higher_deletion(form, tmp_path, monkeypatch):
    """The topic was deleted at epoch 3 and made again; of its epoch 2 a late row of epoch 1 is newer."""
    monkeypatch.setattr(retention_filter, "MARGIN", timedelta(0))
    lake = str(tmp_path)
    ready(lake)
    steps = ["create", "split", "split", "split", "delete", "create", "split", "split", "late"]
    write(lake, batch(1, 5 * MIDNIGHT), *told([(ANOTHER, step, 10, 6) for step in steps], form))
    before = kept_days(lake)
    assert forget_rows(lake, EVENTS, DAY, is_dry_run=False).rows > 0
    assert kept_days(lake) == before


def sent(row, sender):
    return row.model_copy(update={"sender": sender})


def counted(number, seconds, sender):
    """The consumers of a subscription, as a process announces them."""
    columns = {"in_columns": True, "subscription": "sub-a", "subscription_type": "STREAM", "consumers": number}
    return sent(consumer_event("sub-a", number, seconds, topic=ANOTHER).model_copy(update=columns), sender)


def of_layout(cause, epoch, seconds, sender):
    return sent(announced(ANOTHER, cause, epoch, millis(1), seconds, "said"), sender)


@pytest.mark.parametrize(
    "late",
    [
        [counted(9, 30, 1)],
        [of_layout("deleted", 1, 30, 1)],
        [of_layout("deleted", 1, 30, 1), of_layout("snapshot", 1, 40, 2), of_layout("snapshot", 1, 50, 3)],
    ],
    ids=["consumers", "deletion", "deletion before another takes over"],
)
def test_what_a_replaced_process_announced_stays_late(late, tmp_path, monkeypatch):
    """Announcements of process 1 after process 2 has taken over, all of a day that is forgotten."""
    monkeypatch.setattr(retention_filter, "MARGIN", timedelta(0))
    lake = str(tmp_path)
    ready(lake)
    timely = [of_layout("created", 0, 1, 1), of_layout("split", 1, 10, 1), counted(7, 12, 1)]
    timely += [of_layout("snapshot", 1, 20, 2), counted(8, 22, 2)]
    write(lake, batch(1, 5 * MIDNIGHT), *timely, *late, counted(5, MIDNIGHT + 60, 1))
    before = kept_days(lake)
    assert [row.split("'waiting': ")[1][0] for row in before["consumers_waiting"]] == ["4"]
    assert forget_rows(lake, EVENTS, DAY, is_dry_run=False).rows > 0
    assert kept_days(lake) == before


def test_six_hours_before_the_cut_stay_for_windows(tmp_path):
    """Such as the fleet's last hour, half an hour after the first midnight that is kept."""
    lake = str(tmp_path)
    ready(lake)
    decided = (MIDNIGHT - 21_601, MIDNIGHT - 21_600, MIDNIGHT - 900, MIDNIGHT - 60, MIDNIGHT + 600)
    for number, seconds in enumerate(decided, 1):
        write(lake, decision(seconds, number), outcome(f"d{number}", "applied", seconds + 1))
    write(lake, batch(1, MIDNIGHT), batch(2, MIDNIGHT + 1_800))

    def health():
        instant = f"TIMESTAMP '{at(MIDNIGHT + 1_800):%Y-%m-%dT%H:%M:%SZ}'"
        [row] = LakeSql(lake).rows(f"SELECT * FROM fleet_health_at({instant})", is_own=True)
        return row

    before = health()
    assert (before["decisions_last_hour"], before["applied_last_hour"]) == (3, 3)
    assert forget_rows(lake, DECISIONS, DAY, is_dry_run=False).rows == 1
    assert forget_rows(lake, OUTCOMES, DAY, is_dry_run=False).rows == 1
    assert health() == before


def test_time_over_threshold_unknown_behind_the_cut(tmp_path):
    """Segment 0 is over its threshold since long before the cut; the others since a load that stays.

    A job without its state takes a load of segment 0 for the first, behind the cut.
    """
    lake, split_at = str(tmp_path), MIDNIGHT + 600
    ready(lake)
    inputs = json.dumps({"policy": {"splitMsgRateInThreshold": 10_000.0}}, separators=(",", ":"))
    write(
        lake,
        *(load(segment, 5_000.0, 100 + segment) for segment in (0, 1)),
        *(load(0, rate, seconds) for rate, seconds in ((20_000.0, 200), (25_000.0, 300))),
        *(load(segment, 30_000.0, MIDNIGHT + 60 + segment) for segment in (0, 1)),
        *(load(segment, 30_000.0, MIDNIGHT + 90).model_copy(update={"cause": "first"}) for segment in (0, 2)),
        *(
            decision(split_at, segment, reason="msgRateIn", arguments=f'{{"segments":[{segment}]}}', inputs=inputs)
            for segment in (0, 1, 2)
        ),
    )

    def since():
        rows = LakeSql(lake).rows("SELECT * FROM over_threshold ORDER BY segment_id", is_own=True)
        assert {row["rate"] for row in rows} == {30_000.0}
        assert all(row["seconds_over"] is None for row in rows if row["over_since"] is None)
        return [row["over_since"] for row in rows]

    assert since() == [at(200), at(MIDNIGHT + 61), at(MIDNIGHT + 90)]
    assert forget_rows(lake, SEGMENT_LOAD, DAY, is_dry_run=False).rows == 2
    assert since() == [None, at(MIDNIGHT + 61), at(MIDNIGHT + 90)]

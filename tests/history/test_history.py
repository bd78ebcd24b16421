"""The river: segments over time out of layouts on record, in the terminal and as a picture."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from anabranch.cli.main import cli
from anabranch.cli.river_text import river_text
from anabranch.history.lineage import record
from anabranch.history.lineage.record import LAYOUTS_BEFORE, NothingOnRecord, read_river, river_of
from anabranch.history.lineage.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, picture
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from schemas.kafka.messages import LayoutEvent
from tests.engine.records import layout, stats, tick
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.engine.test_replay import NAMES, RecordedBucket
from tests.examples import examples
from tests.history.test_explain import at, written
from tests.local import lake as rows

SVG = "{http://www.w3.org/2000/svg}"
TOPIC = NAMES[0]


def event(made, when, cause="snapshot", **rest):
    return LayoutEvent(v=1, type="layout", topic=TOPIC, cause=cause, layout=made.to_metadata(), at=when, **rest)


def river(events, until=NOW + 60 * MINUTE, reasons=None, by_action=None):
    return river_of(TOPIC, events, until, reasons or {}, by_action or {})


def story():
    """Two segments; one is split, its halves are merged again, and then the whole becomes one."""
    first = SegmentLayout.create(2, NOW)
    split = first.split_segment(0, NOW + 10 * MINUTE)
    merged = split.merge_segments(2, 3, NOW + 30 * MINUTE)
    return [first, split, merged, merged.merge_segments(4, 1, NOW + 45 * MINUTE)]


def tiles(found, when):
    there = sorted((one.start, one.end) for one in found.reaches if one.is_there(when))
    return [edge for ends in there for edge in ends] if there else None


@examples(10)
@given(st.randoms(use_true_random=False))
def test_bands_always_tile_the_key_space(rng):
    """The bands tile at every instant, for any subset of the layouts on record."""
    made, when, events = SegmentLayout.create(rng.randint(1, 4), NOW), NOW, []
    for _ in range(rng.randint(0, 25)):
        when += rng.randint(1, 5 * MINUTE)
        active = made.active
        if rng.random() < 0.6 or len(active) == 1:
            made = made.split_segment(max(active, key=lambda one: (one.width, rng.random())).segment_id, when)
        else:
            place = rng.randrange(len(active) - 1)
            made = made.merge_segments(active[place].segment_id, active[place + 1].segment_id, when)
        if rng.random() < 0.5:
            events.append(event(made, when))
    events.append(event(made, when))
    found = river(events, when + MINUTE)
    for instant in {turn.at for turn in found.turns} | {when, NOW}:
        edges = tiles(found, instant)
        assert (edges[0], edges[-1]) == (0, HASH_SPACE - 1)
        assert all(left + 1 == right for left, right in zip(edges[1:-1:2], edges[2::2], strict=True))
    assert len([turn for turn in found.turns if turn.kind in ("split", "merge")]) == made.epoch
    drawn = ElementTree.fromstring(picture(found))
    assert len(arms_of(drawn)) == len(found.reaches)


def test_window_parses_few_layouts_and_shows_the_same(tmp_path, monkeypatch):
    """The newest layout before the window is a late one, with an older epoch."""
    made, layouts, lake = SegmentLayout.create(1, rows.millis(0)), [], str(tmp_path / "lake")
    for minute in range(100):
        layouts.append((made, minute * 60))
        made = (
            made.split_segment(made.active[0].segment_id, rows.millis(minute * 60 + 59))
            if len(made.active) == 1
            else made.merge_segments(*(one.segment_id for one in made.active), rows.millis(minute * 60 + 59))
        )
    layouts.append((layouts[50][0], 75 * 60 - 30))
    on_record = (rows.layout_event(one.to_metadata().model_dump(mode="json", by_alias=True), at) for one, at in layouts)
    rows.write(lake, *on_record, rows.batch(0, 100 * 60))
    whole, parsed, since = read_river(lake, rows.ORDERS), [], 75 * 60 - 20
    until = rows.at(since + 10)
    short = read_river(lake, rows.ORDERS, rows.at(since), until)
    assert short == read_river(lake, rows.ORDERS, until=until).within(rows.millis(since))

    def counted(topic, events, *rest):
        parsed.append(len(events))
        return river_of(topic, events, *rest)

    monkeypatch.setattr(record, "river_of", counted)
    assert read_river(lake, rows.ORDERS, rows.at(since)) == whole.within(rows.millis(since))
    assert parsed == [LAYOUTS_BEFORE + 25]


def test_newest_part_of_a_river_keeps_few_ended_segments():
    whole = river([event(made, NOW + number * MINUTE) for number, made in enumerate(story())])
    part = whole.newest(2)
    assert [one.ends for one in part.reaches if one.ends is not None] == [NOW + 45 * MINUTE] * 2
    assert part == whole.within(NOW + 30 * MINUTE)
    assert whole.newest(5) is whole


def test_unrecorded_changes_read_from_newest_layout():
    found = river([event(story()[-1], NOW + 50 * MINUTE)])
    assert [(turn.kind, turn.parents, turn.children) for turn in found.turns] == [
        ("created", (), (0, 1)),
        ("split", (0,), (2, 3)),
        ("merge", (2, 3), (4,)),
        ("merge", (4, 1), (5,)),
    ]


def test_pruned_segments_end_when_last_seen():
    made = story()[1]
    pruned = made.merge_segments(2, 3, NOW + 20 * MINUTE).prune_segment(2).prune_segment(3)
    found = river([event(made, NOW + 10 * MINUTE), event(pruned, NOW + 21 * MINUTE)])
    assert [one.ends for one in found.reaches if one.segment_id in (2, 3)] == [NOW + 21 * MINUTE] * 2
    assert found.turns[-1].kind == "made"


def test_recreated_topic_gets_own_key_space_picture():
    again = SegmentLayout.create(1, NOW + 40 * MINUTE)
    found = river(
        [
            event(story()[0], NOW),
            event(story()[0], NOW + 20 * MINUTE, "deleted"),
            event(again, NOW + 40 * MINUTE, "created"),
        ]
    )
    assert [(one.segment_id, one.life, one.ends) for one in found.reaches] == [
        (0, 0, NOW + 20 * MINUTE),
        (1, 0, NOW + 20 * MINUTE),
        (0, 1, None),
    ]
    assert [turn.kind for turn in found.turns] == ["created", "deleted", "created"]


@pytest.mark.parametrize("is_said", [True, False], ids=["said", "silent"])
def test_ended_life_repeated_late_changes_no_band(is_said):
    """A layout of a higher epoch and the deletion of the former topic of that name, in the next one's time."""
    *_, former = story()
    again = SegmentLayout.create(2, NOW + 50 * MINUTE)
    split = again.split_segment(0, NOW + 55 * MINUTE)
    first, second = ({"topic_created_at": when} if is_said else {} for when in (NOW, NOW + 50 * MINUTE))
    deleted = event(former, NOW + 48 * MINUTE, "deleted", **first)
    news = [event(former, NOW + 46 * MINUTE, **first), deleted, event(again, NOW + 50 * MINUTE, **second)]
    late = [event(former, NOW + 47 * MINUTE, **first), deleted]
    after = event(split, NOW + 55 * MINUTE, **second)
    assert river([*news, *late, after, *late]) == river([*news, after])


def test_change_reason_by_decision_id_or_effect():
    first, split, merged, _ = story()
    events = [
        event(first, NOW),
        event(split, NOW + 10 * MINUTE, "split", decision_id="d1"),
        event(merged, NOW + 30 * MINUTE),
    ]
    found = river(
        events, reasons={"d1": "msgRateIn", "d2": "cold"}, by_action={("merge", (2, 3)): [(NOW + 29 * MINUTE, "d2")]}
    )
    assert [(turn.reason, turn.decision_id) for turn in found.turns] == [
        (None, None),
        ("msgRateIn", "d1"),
        ("cold", "d2"),
    ]


def arms_of(drawn):
    """The numbers in the outline of each arm, x and y in turns."""
    arms = [path for path in drawn.findall(f"{SVG}path") if path.attrib["class"] == "arm"]
    return {path.attrib["id"]: [float(one) for one in re.findall(r"-?\d+\.\d", path.attrib["d"])] for path in arms}


def test_picture_places_bands_by_hash_and_time():
    """A band parts where its segment splits."""
    found = river([event(one, NOW + MINUTE) for one in story()])
    drawn = ElementTree.fromstring(picture(found))
    arms = arms_of(drawn)
    assert set(arms) == {f"segment-0-{number}" for number in range(6)}
    height, width = HEIGHT - TOP - BOTTOM, WIDTH - LEFT - RIGHT
    for reach in found.reaches:
        xs, ys = arms[f"segment-0-{reach.segment_id}"][0::2], arms[f"segment-0-{reach.segment_id}"][1::2]
        top, bottom = TOP + reach.start / HASH_SPACE * height, TOP + (reach.end + 1) / HASH_SPACE * height
        assert top <= min(ys) < max(ys) <= bottom
        assert min(xs) == pytest.approx(LEFT + (reach.begins - NOW) / (60 * MINUTE) * width, abs=0.1)
    # The upper half begins where its parent was, without a bank to the lower half, and gets one.
    middle = TOP + found.reaches[2].end / HASH_SPACE * height
    lower_bank = [
        y for x, y in zip(arms["segment-0-2"][0::2], arms["segment-0-2"][1::2], strict=True) if y > middle - 9
    ]
    assert max(lower_bank) == pytest.approx(middle, abs=0.2)
    assert min(lower_bank) < middle - 3
    titles = [one.text for one in drawn.iter(f"{SVG}title")]
    assert any(one.startswith("split 0 into 2 and 3 at 2025-11-20 17:43:20 UTC") for one in titles)


def test_terminal_lists_changes_with_reasons():
    found = river(
        [event(one, NOW + MINUTE) for one in story()],
        reasons={"d": "cold"},
        by_action={("merge", (2, 3)): [(NOW, "d")]},
    )
    console = Console(width=120, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(river_text(found, 120, 40))
    lines = captured.get().splitlines()
    rows = [line for line in lines if line.startswith("2025-")]
    assert [row[:20] for row in rows] == [
        "2025-11-20T17:33:20Z",
        "2025-11-20T17:43:20Z",
        "2025-11-20T18:03:20Z",
        "2025-11-20T18:18:20Z",
        "2025-11-20T18:33:20Z",
    ]
    assert "2: 0000-3fff" in rows[1]
    assert "split 0 -> 2, 3 (not by" in rows[1]
    assert "merge 2, 3 -> 4 (cold)" in rows[2]
    assert any("20m0s" in line for line in lines)
    short = replace(found, turns=found.turns[-1:])
    with console.capture() as captured:
        console.print(river_text(short, 80, 1))
    assert "as it was" in captured.get()


def test_the_command_draws_what_is_on_record(tmp_path):
    bucket = RecordedBucket()
    first, split, *_ = story()
    bucket.batch(NOW, layout(first, topic=TOPIC), layout(SegmentLayout.create(1, NOW), topic=NAMES[1]))
    bucket.batch(NOW + SECOND, stats({0: 12_500.0, 1: 5_000.0}, NOW, TOPIC), tick(1))
    bucket.batch(NOW + 11 * MINUTE, layout(split, "split", topic=TOPIC))
    lake = written(bucket, tmp_path / "lake")
    (tmp_path / "s.toml").write_text(f'[lake]\npath = "{lake}"\n')
    file = tmp_path / "orders.svg"

    def run(*arguments):
        return CliRunner().invoke(cli, ["-c", str(tmp_path / "s.toml"), "history", *arguments], catch_exceptions=False)

    assert "split 0 -> 2, 3 (msgRateIn)" in re.sub(r"\s+", " ", run("t0").output)
    assert run("t0", "--svg", str(file)).exit_code == 0
    assert "because of" not in file.read_text()
    assert "split 0 into 2 and 3 at 2025-11-20 17:43:20 UTC, msgRateIn" in file.read_text()
    told = json.loads(run("t0", "--since", "2025-11-20T17:40", "--output", "json").output)
    assert [turn["kind"] for turn in told["turns"]] == ["split"]
    assert run("t7").exit_code == 2
    late = run("t0", "--since", "2030-01-01T00:00Z")
    assert (late.exit_code, late.output) == (
        1,
        "Error: the record ends at 2025-11-20 17:44:20 UTC, before --since 2030-01-01 00:00:00\n",
    )
    with pytest.raises(NothingOnRecord, match=r"no layout of topic://acme/shop/t0 is on record up to 2025-11-20 17:0"):
        read_river(lake, TOPIC, until=at(NOW - 30 * MINUTE))

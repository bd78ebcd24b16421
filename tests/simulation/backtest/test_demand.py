"""What was wanted of slices, out of what segments carried: nothing is lost, nothing made up, whatever the layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.simulation.backtest.demand import Loads, estimate_demand
from anabranch.simulation.backtest.incarnations import Announced, Told, ToldConsumers, actions_of, lives_of, topic_lives
from anabranch.simulation.topics.timeline import STEP_MS, ConsumersFrom
from decisions.topic.layout import HASH_SPACE, LayoutError, SegmentLayout
from tests.examples import examples

END = 7_200_000


def told(*rows):
    """Loads from (at, segment, messages in)."""
    at, segment, rate = zip(*rows, strict=True) if rows else ((), (), ())
    rates = np.array(rate, float)[:, None] * np.array([1.0, 100.0, 2.0, 200.0])
    return Loads(np.array(at, np.int64), np.array(segment, np.int64), rates.reshape(-1, 4))


def carried(demand, at, start, end):
    """Messages in of a range of hashes at an instant."""
    instants, rates = demand.between(demand.began_at, demand.ends_at, STEP_MS)
    below = np.r_[0.0, np.cumsum(rates[np.searchsorted(instants, at, "right") - 1, :, 0])]
    low, high = np.interp([start, end + 1], demand.edges, below)
    return float(high - low)


@given(st.integers(0, 2**32 - 1))
@examples(10)
def test_recorded_segments_carry_recorded_load(seed):
    random = np.random.default_rng(seed)
    layout = SegmentLayout.create(int(random.integers(1, 4)), 0)
    announced, rows = [Announced(0, layout)], []
    for step in range(40):
        at = step * STEP_MS
        if random.random() < 0.3 and step:
            ids = [one.segment_id for one in layout.active]
            try:
                place = int(random.integers(len(ids)))
                layout = (
                    layout.split_segment(ids[place], at)
                    if random.random() < 0.6
                    else layout.merge_segments(*ids[place : place + 2], at)
                )
            except (LayoutError, TypeError):
                pass
            else:
                announced.append(Announced(at, layout))
        rows += [(at, one.segment_id, float(random.choice([0.0, random.uniform(0, 1e4)]))) for one in layout.active]
    demand = estimate_demand(lives_of(announced, 40 * STEP_MS), told(*rows), 0, 40 * STEP_MS)
    known = {(at, segment): rate for at, segment, rate in rows}
    instants, rates = demand.between(0, 40 * STEP_MS, STEP_MS)
    for begin, layout, end in zip(
        [one.at for one in announced],
        [one.layout for one in announced],
        [*(one.at for one in announced[1:]), 40 * STEP_MS],
        strict=True,
    ):
        for at in range(begin, end, STEP_MS):
            for one in layout.active:
                slices = slice(*np.searchsorted(demand.edges, (one.start, one.end + 1)))
                found = rates[np.searchsorted(instants, at, "right") - 1, slices, 0].sum()
                assert abs(found - known[at, one.segment_id]) < 1e-4


def split_once(at=3_600_000):
    made = SegmentLayout.create(1, 0)
    return [Announced(0, made), Announced(at, made.split_segment(0, at))]


def test_whole_divided_as_its_later_halves():
    loads = told((0, 0, 1_000.0), (3_600_000, 1, 900.0), (3_600_000, 2, 300.0))
    demand = estimate_demand(lives_of(split_once(), END), loads, 0, END)
    assert carried(demand, 0, 0, 0x7FFF) == pytest.approx(750.0)
    assert carried(demand, 3_600_000, 0, 0x7FFF) == pytest.approx(900.0)
    # Never apart: even.
    assert carried(demand, 3_600_000, 0, 0x3FFF) == pytest.approx(450.0)


def test_merged_segment_divided_as_its_former_halves():
    """Even when it carried nothing meanwhile."""
    layouts = split_once(60_000)
    layouts.append(Announced(120_000, layouts[-1].layout.merge_segments(1, 2, 120_000)))
    loads = told((0, 0, 10.0), (60_000, 1, 900.0), (60_000, 2, 100.0), (120_000, 3, 0.0), (180_000, 3, 2_000.0))
    demand = estimate_demand(lives_of(layouts, END), loads, 0, END)
    assert carried(demand, 120_000, 0, HASH_SPACE - 1) == pytest.approx(0.0, abs=1e-4)
    assert carried(demand, 180_000, 0, 0x7FFF) == pytest.approx(1_800.0)


def test_unrecorded_segment_carries_part_of_origin():
    demand = estimate_demand(lives_of(split_once(60_000), END), told((0, 0, 800.0), (90_000, 1, 10.0)), 0, END)
    # Of the upper half nothing is ever on record: its width's part, beside what the lower one carried first.
    assert carried(demand, 60_000, 0, 0x7FFF) == pytest.approx(800 * 10 / 410)
    assert carried(demand, 90_000, 0, 0x7FFF) == pytest.approx(10.0)
    assert carried(demand, 90_000, 0x8000, 0xFFFF) == pytest.approx(800 * 400 / 410)


def test_a_load_from_before_the_beginning_holds_at_it():
    lives = lives_of([Announced(100_000, SegmentLayout.create(1, 0))], END)
    assert carried(estimate_demand(lives, told((5_000, 0, 70.0)), 100_000, END), 100_000, 0, 0xFFFF) == pytest.approx(
        70.0
    )


def test_windows_give_what_the_whole_gives():
    loads = told(*[(at, 0, float(at % 700)) for at in range(0, 600_000, 7_000)])
    demand = estimate_demand(lives_of([Announced(0, SegmentLayout.create(2, 0))], 600_000), loads, 0, 600_000)
    at, rates = demand.between(0, 600_000, STEP_MS)
    for begin in range(0, 600_000, 60_000):
        inside, found = demand.between(begin, begin + 60_000, STEP_MS)
        assert inside[0] == begin
        assert (found == rates[np.searchsorted(at, inside, "right") - 1]).all()


def test_layout_changes_attributed_to_decisions():
    layouts = split_once()
    merged = layouts[-1].layout.merge_segments(1, 2, END)
    layouts.append(Announced(END, merged, "d2"))
    assert [one[:5] for one in actions_of(layouts)] == [
        (3_600_000, "split", 0, 0xFFFF, None),
        (END, "merge", 0, 0xFFFF, "d2"),
    ]
    assert [one.children for one in actions_of(layouts)] == [(1, 2), (3,)]


def said(announced, said_at=None, created_at=None, is_deletion=False):
    return Told(announced, is_deletion, announced.at if said_at is None else said_at, created_at)


def bounds_of(told):
    """Layouts, begin and end of each life."""
    return [(life.layouts, life.after, life.ends) for life in topic_lives(told)]


def test_topic_made_again_is_another_life():
    made = SegmentLayout.create(1, 1)
    layouts = [Announced(1, made), Announced(3_600_000, made.split_segment(0, 3_600_000))]
    again = Announced(END, SegmentLayout.create(1, END))
    late = Announced(END - 1, made)
    assert bounds_of([said(one) for one in (*layouts, late, again)]) == [(layouts, 0, END), ([again], END, None)]


def test_late_news_of_a_deleted_life_is_left_out():
    first = Announced(0, SegmentLayout.create(1, 0))
    gone, late = first._replace(at=100), first._replace(at=200)
    second = Announced(300, SegmentLayout.create(1, 250))
    for created_at, other in ((None, None), (0, 250)):
        told = [
            said(first, 0, created_at),
            said(gone, 100, created_at, True),
            said(late, 50, created_at),
            said(second, 250, other),
            said(late._replace(at=400), 60, created_at),
        ]
        assert bounds_of(told) == [([first], 0, 100), ([second], 100, None)]


def test_incarnations_without_instants_split_by_deletion():
    one = SegmentLayout.create(1, 0)
    told = [said(Announced(0, one)), said(Announced(100, one), is_deletion=True), said(Announced(300, one))]
    assert [(len(life.layouts), life.after, life.ends) for life in topic_lives(told)] == [(1, 0, 100), (1, 100, None)]


def test_consumers_are_those_of_their_own_life():
    """Where nobody announced the end of the first life, only the order tells."""
    made = SegmentLayout.create(1, 1)
    first = [Announced(1, made), Announced(3_600_000, made.split_segment(0, 3_600_000))]
    again = Announced(END, SegmentLayout.create(1, END))
    counts = [
        ToldConsumers(ConsumersFrom(announced_at, "s", "STREAM", number), announced_at)
        for announced_at, number in ((10, 3), (END + 10, 5))
    ]
    second = topic_lives([said(one) for one in (*first, again)])[1]
    assert [change.sessions for change in second.consumers(counts)] == [5]

"""Colours of segments by load, in the strip and in the picture of a topic's past."""

from __future__ import annotations

import pytest

from anabranch.history.lineage.record import Reach, River
from anabranch.web.drawing.river import river_picture
from anabranch.web.drawing.strip import LEVELS, level
from anabranch.web.past import Sample
from decisions.autoscale.policy import PROFILES
from tests.web.pages import pictures


@pytest.mark.parametrize(
    ("load", "is_cold", "words"),
    [
        (None, False, "no load seen"),
        (0.2, True, "cold"),
        (0.5, False, "below half"),
        (0.51, True, "half to full"),
        (0.8, False, "half to full"),
        (0.81, False, "nearly full"),
        (1.0, False, "nearly full"),
        (1.01, False, "over the split threshold"),
    ],
)
def test_colour_of_a_segment_is_that_of_its_load(load, is_cold, words):
    assert LEVELS[level(load, is_cold)] == words


def test_load_colours_its_segment_until_the_next_one():
    policy = PROFILES["pip-483"]
    loads = [Sample(at, (part * policy.split_thresholds[0], 0, 0, 0)) for at, part in ((20_000, 0.7), (60_000, 2.0))]
    river = River("t", 0, 100_000, (Reach(0, 0x0000, 0xFFFF, 0, None),), ())
    [picture] = pictures(str(river_picture(river, {0: loads}, policy, [], [], lambda *_: "/why", str)))
    drawn = [place.find("rect") for place in picture.iter() if place.tag == "a"]
    assert [one.get("class") for one in drawn] == ["hu", "h2", "h4"]
    lefts, widths = ([float(one.get(name)) for one in drawn] for name in ("x", "width"))
    # No gap, and in proportion: a fifth, two and two.
    assert lefts[1:] == pytest.approx([left + width for left, width in zip(lefts, widths, strict=True)][:-1], abs=1)
    assert [width / sum(widths) for width in widths] == pytest.approx([0.2, 0.4, 0.4], abs=0.02)

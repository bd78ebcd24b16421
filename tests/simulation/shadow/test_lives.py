"""Late and repeated announcements of a deleted topic, in the life of another one of its name. In memory."""

from __future__ import annotations

import pytest

from decisions.topic.layout import SegmentLayout
from tests.engine.records import layout, of_life
from tests.engine.test_engine import MINUTE, NOW, SECOND
from tests.simulation.shadow.test_own import sides_of
from tests.simulation.shadow.test_shadow import T0, Shadowed

LATER = NOW + 2 * MINUTE


def announced(known, cause, at, created_at):
    message = layout(known, cause=cause, at=at, topic=T0)
    return message if created_at is None else of_life(created_at, message, at)


@pytest.mark.parametrize("is_said", [True, False], ids=["said", "silent"])
@pytest.mark.parametrize("late", ["layout", "deletion", "both"])
def test_ended_life_repeated_late_shows_no_action(is_said, late):
    """Both lives are split once by the other scaler; in the second one, the first is heard of again."""
    bucket = Shadowed()
    first, second = SegmentLayout.create(2, NOW - 60 * MINUTE), SegmentLayout.create(2, LATER + SECOND)
    split_first, split_second = first.split_segment(0, NOW), second.split_segment(1, LATER + 10 * SECOND)
    lives = (NOW - 60 * MINUTE, LATER + SECOND) if is_said else (None, None)
    bucket.batch(NOW - MINUTE, announced(first, "created", NOW - MINUTE, lives[0]))
    bucket.batch(NOW + SECOND, announced(split_first, "snapshot", NOW + SECOND, lives[0]))
    bucket.batch(LATER, announced(split_first, "deleted", LATER, lives[0]))
    bucket.batch(LATER + 2 * SECOND, announced(second, "created", LATER + 2 * SECOND, lives[1]))
    repeated = []
    if late in ("layout", "both"):
        repeated.append(announced(split_first, "snapshot", NOW + MINUTE, lives[0]))
    if late in ("deletion", "both"):
        repeated.append(announced(split_first, "deleted", LATER, lives[0]))
    bucket.batch(LATER + 5 * SECOND, *repeated)
    bucket.batch(LATER + 11 * SECOND, announced(split_second, "snapshot", LATER + 11 * SECOND, lives[1]))
    bucket.batch(LATER + 12 * SECOND, *repeated)
    assert [(done.what, done.at) for done in sides_of(bucket).theirs] == [
        (("split", (0,)), NOW),
        (("split", (1,)), LATER + 10 * SECOND),
    ]


def test_undeleted_topic_made_again_begins_a_life():
    """The other scaler's first action is seen although nobody has announced a deletion."""
    bucket = Shadowed()
    bucket.begin(T0)
    bucket.they(T0, "split", 0, at=NOW)
    bucket.layouts[T0] = SegmentLayout.create(2, LATER)
    bucket.batch(LATER + SECOND, layout(bucket.layouts[T0], cause="snapshot", at=LATER + SECOND, topic=T0))
    bucket.they(T0, "split", 0, at=LATER + 10 * SECOND)
    assert [done.at for done in sides_of(bucket).theirs] == [NOW, LATER + 10 * SECOND]

"""What counts as a gap in the numbers of a subject's decisions."""

from __future__ import annotations

import json

import pytest

from lake.integrity import check_integrity
from tests.local.lake import at, layout_event, layout_json

TOPIC = "topic://acme/shop/orders"
DELETED = layout_event(layout_json((0, 0x0000, 0xFFFF)), 2, cause="deleted", topic=TOPIC).model_dump()


def gaps(seqs, events=(), seconds=(1, 2, 3)):
    decisions = [
        {"family": "autoscale", "subject": TOPIC, "seq": seq, "decided_at": at(second), "batch_id": number}
        for number, (seq, second) in enumerate(zip(seqs, seconds, strict=True))
    ]
    return check_integrity([], decisions, [], [], list(events), [], None)["sequenceGaps"]


@pytest.mark.parametrize(
    ("seqs", "events", "seconds", "count"),
    [
        ((1, 2, 3), (), (1, 2, 3), 0),
        ((1, 2, 4), (), (1, 2, 3), 1),
        ((1, 2, 1), (), (1, 2, 3), 1),
        ((1, 2, 1), (DELETED,), (1, 2, 3), 0),
        ((1, 3, 1), (DELETED,), (1, 2, 3), 1),
        ((1, 2, 3), (), (5000, 1, 2), 0),
    ],
)
def test_numbers_gapless_despite_deletion_and_clock(seqs, events, seconds, count):
    """They begin again after a deletion; the clock may be set back."""
    assert json.loads(DELETED["body"])["cause"] == "deleted"
    assert len(gaps(seqs, events, seconds)) == count

"""Every kind of bad message is refused by the one validator with the reason that its kind names."""

from __future__ import annotations

from random import Random

import pytest

from schemas.codecs.columns import split_columns
from schemas.kafka.messages import Rejected, RejectReason, SegmentStatsColumns, parse_message
from tests.harness.garbage import KINDS, make_garbage

TOPIC = "topic://acme/shop/orders"
JUDGED_BY_THE_OPERATOR = {RejectReason.FROM_THE_FUTURE, RejectReason.BAD_LAYOUT}


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_refused_for_its_kind(kind):
    garbage = make_garbage(TOPIC, 1_763_660_000_000, Random(1), kind)
    parsed = parse_message(garbage.source, garbage.key, garbage.value)
    if isinstance(parsed, SegmentStatsColumns):
        reasons = [one.reason for one in split_columns(parsed)[1]]
        assert reasons == ([garbage.expected] if garbage.of_a_sample else [])
    if garbage.of_a_sample or garbage.expected is None or garbage.expected in JUDGED_BY_THE_OPERATOR:
        assert not isinstance(parsed, Rejected)
    else:
        assert isinstance(parsed, Rejected)
        assert parsed.reason == garbage.expected


def test_kinds_cover_every_reject_reason():
    random = Random(1)
    by_itself = {*RejectReason, None} - {RejectReason.UNKNOWN_TOPIC, RejectReason.TOO_MANY}
    assert {make_garbage(TOPIC, 1, random, kind).expected for kind in KINDS} == by_itself


def test_seeded_garbage_repeats_and_covers_kinds():
    first, second = Random("a"), Random("a")
    drawn = [make_garbage(TOPIC, 1, first) for _ in range(300)]
    assert drawn == [make_garbage(TOPIC, 1, second) for _ in range(300)]
    assert {garbage.kind for garbage in drawn} == set(KINDS)

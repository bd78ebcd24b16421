"""Rounds of snapshots: layouts in full first, when they have changed, and in every twelfth round; else by digest."""

from __future__ import annotations

from collections import Counter

from anabranch.controller.outbox.announcements import STAMP_BYTES, stamped
from anabranch.controller.publishing.snapshots import Snapshots
from decisions.topic.layout import SegmentLayout
from schemas.codecs.known_layouts import FULL_EVERY
from schemas.codecs.plain_events import digest_of, layout_in, read_plain
from schemas.kafka.messages import MAX_VALUE_BYTES, LayoutEvent, LayoutsKnown, parse_message
from tests.engine.buckets import Bucket, topics_of
from tests.engine.records import record as raw_record

NOW = 1_763_660_000_000
NAMES = [f"topic://acme/shop/t{number}" for number in range(120)]


class Stored:
    """Layouts as a store has them, which may be read at any moment; the real one is read in `test_publisher`."""

    def __init__(self) -> None:
        self.now = {name: SegmentLayout.create(2, NOW) for name in NAMES}

    def namespace_policies(self):
        return {}

    def all_topics(self):
        return list(self.now)

    def layouts(self, names):
        return [(name, self.now[name].to_metadata().to_json().encode()) for name in names if name in self.now]

    def subscriptions(self, name):
        return []


def records_of(snapshots, told=frozenset()):
    """All of one round."""
    page = snapshots.next_page()
    while page is not None:
        yield from page.without(told).records()
        page = snapshots.next_page() if snapshots._left else None


def round_of(snapshots, told=frozenset()):
    """All of one round as listeners see it: what went in full, by topic, and the digests."""
    in_full, digests = {}, {}
    for record in records_of(snapshots, told):
        value = stamped(record, 7)
        message = parse_message(record.source, record.key.encode(), value)
        if isinstance(message, LayoutEvent):
            assert message.cause == "snapshot"
            assert read_plain(record.source, record.key.encode(), value, len(value)) is not None
            in_full[message.topic] = digest_of(layout_in(value))
        else:
            assert isinstance(message, LayoutsKnown)
            assert (message.sender, len(value) <= MAX_VALUE_BYTES - STAMP_BYTES) == (7, True)
            entries = zip(message.topics, message.epochs, message.digests, strict=True)
            digests |= {topic: (epoch, digest) for topic, epoch, digest in entries}
    return in_full, digests


def test_layout_in_every_round_and_full_each_twelfth():
    snapshots = Snapshots(Stored(), 0, lambda: NOW)
    first, digests = round_of(snapshots)
    assert (first.keys(), digests) == (set(NAMES), {})
    in_full: Counter[str] = Counter()
    for _ in range(FULL_EVERY):
        full, digests = round_of(snapshots)
        assert full.keys() | digests.keys() == set(NAMES)
        assert not full.keys() & digests.keys()
        assert digests == {name: (0, first[name]) for name in digests}, "that of what was said in full"
        assert len(full) < len(NAMES) / 3, "not all in the same round"
        in_full.update(full.keys())
    assert in_full == Counter(NAMES)


def test_changed_layout_sent_in_full_and_gone_dropped():
    stored = Stored()
    snapshots = Snapshots(stored, 0, lambda: NOW)
    round_of(snapshots)
    changed, gone = [name for name in NAMES if name not in round_of(snapshots)[0]][:2]
    stored.now[changed] = stored.now[changed].split_segment(0, NOW)
    stored.now["topic://acme/shop/new"] = SegmentLayout.create(1, NOW)
    del stored.now[gone]
    full, digests = round_of(snapshots)
    assert {changed, "topic://acme/shop/new"} <= full.keys()
    assert gone not in full.keys() | digests.keys()
    _, digests = round_of(snapshots)
    assert digests[changed] == (1, full[changed])


def test_a_sender_that_begins_says_everything_in_full():
    snapshots = Snapshots(Stored(), 0, lambda: NOW)
    for _ in range(2):
        round_of(snapshots)
    snapshots.restart()
    assert round_of(snapshots)[0].keys() == set(NAMES)


def test_page_omits_layout_announced_after_it():
    snapshots = Snapshots(Stored(), 0, lambda: NOW)
    told = {("control-events", NAMES[0])}
    first, _ = round_of(snapshots, told)
    assert NAMES[0] not in first
    full, digests = round_of(snapshots)
    assert NAMES[0] in full, "what was left out was not said"
    quiet = next(iter(digests))
    _, digests = round_of(snapshots, {("control-events", quiet)})
    assert quiet not in digests


def test_job_recovers_layouts_within_twelve_rounds():
    """The job counts the unknown layouts until then."""
    stored = Stored()
    snapshots, bucket = Snapshots(stored, 0, lambda: NOW), Bucket()

    def heard():
        said = [raw_record(one.source, one.key, stamped(one, 7)) for one in records_of(snapshots)]
        return bucket.batch(NOW, *said).counts.layouts_unknown

    heard()
    missed = NAMES[:60]
    for name in missed:
        stored.now[name] = stored.now[name].split_segment(0, NOW)
    round_of(snapshots)
    unknown = [heard() for _ in range(FULL_EVERY)]
    assert 30 < unknown[0] <= 60
    assert unknown == sorted(unknown, reverse=True)
    assert unknown[-1] == 0
    known = topics_of(bucket.packed).topics
    assert {name: known[name].known.epoch for name in NAMES} == {name: int(name in missed) for name in NAMES}

"""Where samples go, in columns: as if each message and topic were looked at by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decisions.topic.layout import SegmentLayout
from engine.autoscale import routes
from engine.autoscale.pairs import NO_ROW
from engine.autoscale.rows import RowIndex
from tests.engine.buckets import Bucket, loads_of
from tests.engine.records import columns, layout, policy, stats
from tests.engine.test_engine import NOW, SECOND

TOPICS = [f"topic://acme/shop/t{number}" for number in range(4)]
MAX_STRANGERS = 6


class Plain:
    """The rule, one message and topic after the other (`engine.autoscale.routes`)."""

    def __init__(self):
        self.layouts, self.ended, self.rows = {}, set(), {}

    def announce(self, topic, new):
        """A layout, or None: the topic is gone."""
        self.layouts.pop(topic, None)
        if new is None:
            self.ended.add(topic)
            self.rows.pop(topic, None)
            return
        self.ended.discard(topic)
        self.layouts[topic] = new
        self.rows[topic] = {i for i in self.rows.get(topic, ()) if i in active(new) or i >= new.next_segment_id}

    def take(self, topic, segments):
        """The segments whose samples are kept."""
        rows, known = self.rows.setdefault(topic, set()), self.layouts.get(topic)
        if known is not None:
            newer = known.next_segment_id
            kept = {i for i in segments if i in active(known) or newer <= i < newer + routes.MAX_AHEAD}
        elif topic in self.ended:
            kept = set()
        else:
            strangers = sum(len(rows) for name, rows in self.rows.items() if name not in self.layouts)
            fits = strangers + len({*segments} - rows) <= MAX_STRANGERS
            kept = {*segments} if fits else {*segments} & rows
        rows |= kept
        return kept


def active(known):
    return {segment.segment_id for segment in known.active}


ids = st.lists(st.sampled_from([0, 1, 2, 3, 4, 60, 66, 2**63 - 1]), min_size=1, max_size=4, unique=True)
reports = st.tuples(
    st.sampled_from(["a", "b"]), st.dictionaries(st.sampled_from(TOPICS), ids, min_size=1, max_size=3), st.booleans()
)
happens = st.tuples(st.sampled_from(TOPICS), st.sampled_from(["split", "split", "gone", "policy"]))


@given(st.lists(st.tuples(st.lists(happens, max_size=2), st.lists(reports, max_size=4), st.booleans()), max_size=6))
def test_both_forms_keep_samples_as_single_rule(batches):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(routes, "MAX_ROWS_WITHOUT_LAYOUT", MAX_STRANGERS)
        plain, buckets = Plain(), (Bucket(), Bucket())
        for number, (happened, reported, restarts) in enumerate(batches):
            begin = NOW + number * 10 * SECOND
            events = [one for place, entry in enumerate(happened) for one in happening(plain, entry, begin + place)]
            messages: tuple[list, list] = ([], [])
            left = total = 0
            for place, (reporter, topics, in_columns) in enumerate(reported):
                rates = {topic: {i: float(place) for i in of} for topic, of in topics.items()}
                by_topic = [stats(of, begin + place, topic, reporter) for topic, of in rates.items()]
                messages[0].extend(by_topic)
                messages[1].extend([columns(rates, begin + place, reporter)] if in_columns else by_topic)
                for topic, of in topics.items():
                    total += len(of)
                    left += len(of) - len(plain.take(topic, of))
            for bucket, of_bucket in zip(buckets, messages, strict=True):
                if restarts:
                    bucket.restart()
                counts = bucket.batch(begin + SECOND, *events, *of_bucket).counts
                assert (counts.samples, counts.samples_stale) == (total, left)
                index = loads_of(bucket.packed).index
                assert {name: {*index.segments_of(name)} for name in index.topics()} == {
                    name: rows for name, rows in plain.rows.items() if rows
                }
            assert buckets[0].packed.parts["loads"] == buckets[1].packed.parts["loads"]


def happening(plain, entry, at):
    """The announcements of what happens, the rule told."""
    topic, kind = entry
    known = plain.layouts.get(topic)
    if kind == "policy":
        return [policy({"mergeMsgRateInThreshold": float(at % 7)}, "acme/shop")]
    if kind == "gone":
        if known is None:
            return []
        plain.announce(topic, None)
        return [layout(known, "deleted", at, topic)]
    new = SegmentLayout.create(2, at) if known is None else known.split_segment(known.active[0].segment_id, at)
    plain.announce(topic, new)
    return [layout(new, "split" if known else "created", at, topic)]


rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3) | st.integers(0, 2**63 - 1)), max_size=300)


@given(st.lists(st.tuples(rows, st.lists(st.integers(0, 400), max_size=9)), max_size=5))
def test_rows_found_by_topic_and_segment_after_changes(steps):
    index, known = RowIndex(), {}
    for wanted, taken in steps:
        for number, segment in wanted:
            (known[f"t{number}", segment],) = index.rows_of(f"t{number}", [segment]).tolist()
        places = list(known)
        gone = [places[place] for place in {*taken} if place < len(places)]
        index.remove([known.pop(pair) for pair in gone])
        names = [name for name, _ in (*known, *gone)]
        segments = [segment for _, segment in (*known, *gone)]
        found = index.find(index.numbers_of(names), np.array(segments, np.int64)).tolist()
        assert found == [*known.values(), *[NO_ROW] * len(gone)]
        assert {(name, i): row for name in index.topics() for i, row in index.of_topic(name).items()} == known
        compacted = index.compacted()
        if compacted is not None:
            index, kept = compacted
            moved = {row: place for place, row in enumerate(kept.tolist())}
            known = {pair: moved[row] for pair, row in known.items()}

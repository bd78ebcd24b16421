"""A replay that goes on from stored state, whatever groups of topics that was stored by."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.autoscale.family import LOADS, TOPICS
from engine.autoscale.regrouping import names_in, regroup_topics
from engine.replay import BucketReplay
from tests.engine.buckets import CONFIGURED, SETTINGS
from tests.engine.test_replay import NAMES, STORY, RecordedBucket, of_topics, replayed, told
from tests.examples import examples

MINUTE = 60_000


def bases(parts):
    return parts[TOPICS].base, parts[LOADS].base


def all_loads(loads):
    return {name: loads.loads_of(name) for name in loads.index.topics()}


@given(STORY, STORY, st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
@examples(3)
def test_regrouped_state_continues_unchanged(story, rest, before, after):
    bucket = RecordedBucket()
    ends = told(story, bucket) + 1
    half = replayed(bucket.history())
    whole = [(half.parts[TOPICS].pack(), half.parts[LOADS].pack())]
    pieces = [bases(regroup_topics(whole, names)) for names in (before, {*NAMES} - before)]
    assert names_in(pieces) == names_in(whole)
    told(rest, bucket, ends + MINUTE)
    history = bucket.history()
    at_once = replayed(history)
    for names in (after, {*NAMES} - after):
        gone_on = BucketReplay(SETTINGS, CONFIGURED, begun=regroup_topics(pieces, names), of_older=half.of_older)
        for batch in history.of_bucket(names):
            if batch.now > ends:
                gone_on.take(batch)
        topics, *policies = of_topics(at_once.state)
        assert of_topics(gone_on.state) == ({name: topics[name] for name in topics if name in names}, *policies)
        assert all_loads(gone_on.loads) == {
            name: loads for name, loads in all_loads(at_once.loads).items() if name in names
        }
        assert gone_on.state.ended == {name: one for name, one in at_once.state.ended.items() if name in names}
        assert gone_on.state.policy_senders == at_once.state.policy_senders
        assert gone_on.state.configured == at_once.state.configured

"""Transfer of topics from one bucket's state to another's. Pure.

Their loads and the shared policies go with them.

Stage: beside the job, where state is grouped differently from its buckets (`anabranch.history.state_snapshots`).
"""

from collections.abc import Collection, Iterable

from engine.autoscale.family import LOADS, TOPICS
from engine.autoscale.loads import COLUMNS, LoadTable
from engine.autoscale.loads_codec import pack_loads, unpack_loads
from engine.autoscale.topics import BucketState
from engine.autoscale.topics_codec import pack_topics, unpack_topics
from engine.kernel.packed import StoredPart


def names_in(stored: Iterable[tuple[bytes, bytes]]) -> set[str]:
    """Return the topics of some buckets, deleted ones included. Raises `StateError`."""
    names = set[str]()
    for of_topics, of_loads in stored:
        state = unpack_topics(StoredPart(of_topics))
        names |= {*state.topics, *state.ended, *unpack_loads(StoredPart(of_loads)).index.topics()}
    return names


def regroup_topics(stored: Iterable[tuple[bytes, bytes]], names: Collection[str]) -> dict[str, StoredPart]:
    """Return the stored parts of a bucket with these topics, from their buckets. Raises `StateError`."""
    topics, loads, wanted = BucketState(), LoadTable(), frozenset(names)
    for of_topics, of_loads in stored:
        _take_over(topics, loads, unpack_topics(StoredPart(of_topics)), unpack_loads(StoredPart(of_loads)), wanted)
    return {TOPICS: StoredPart(pack_topics(topics)), LOADS: StoredPart(pack_loads(loads))}


def _take_over(
    topics: BucketState, loads: LoadTable, of_topics: BucketState, of_loads: LoadTable, names: Collection[str]
) -> None:
    """Copy the policies, and those of the named topics that are present."""
    topics.configured, topics.cluster_policy = of_topics.configured, of_topics.cluster_policy
    topics.namespace_policies, topics.policy_senders = of_topics.namespace_policies, of_topics.policy_senders
    topics.topics.update({name: topic for name, topic in of_topics.topics.items() if name in names})
    ended = {**topics.ended, **{name: ending for name, ending in of_topics.ended.items() if name in names}}
    # Entries are evicted from the front, so the oldest come first.
    topics.ended = dict(sorted(ended.items(), key=lambda item: item[1].noted_at or 0))
    for name in of_loads.index.topics():
        there = of_loads.index.of_topic(name) if name in names else {}
        if there:
            rows, before = loads.rows_of(name, [*there]), [*there.values()]
            loads.rates[rows] = of_loads.rates[before]
            for column in (*COLUMNS, "reporter"):
                getattr(loads, column)[rows] = getattr(of_loads, column)[before]

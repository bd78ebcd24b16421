"""Storing: apply announcements and significant samples to a bucket's state and clocks.

Stage: the third of a record (parse, filter, store, count, record). For an announcement each function returns whether
the topic must be evaluated now. Clock rules are in `decisions.autoscale.clocks`, those of pasts and
merge depths in `decisions.autoscale.past`.
"""

import numpy as np

from decisions.autoscale.clocks import (
    OpenDecision,
    cooldowns_after_layout,
    failures_after_absence,
    failures_after_outcome,
    is_done,
    open_after_outcome,
)
from decisions.autoscale.past import depths_after_layout, past_after_layout
from engine.autoscale.filtering import Codes, Floats, Ints, News, distinct_rounds, significant_samples
from engine.autoscale.incarnations import began_with
from engine.autoscale.layouts import ReadLayout
from engine.autoscale.loads import LoadTable, Origins
from engine.autoscale.parsing import ConsumerAnnouncement, NewLayout, TopicDeleted
from engine.autoscale.policies import Policies
from engine.autoscale.topics import (
    MAX_WAIT_FOR_LAYOUT_MS,
    BucketState,
    ConfiguredPolicy,
    PolicySender,
    TopicEnd,
    TopicState,
)
from schemas.kafka.messages import OutcomeEvent, PolicyEvent


def store_layout(
    state: BucketState, loads: LoadTable, policies: Policies, new: NewLayout, news: News, now: int
) -> bool:
    """Apply a newer layout: clocks, merge depths, loads of sealed segments, completed decisions."""
    name, sender, read = new.event.topic, new.event.sender or 0, new.read
    if news is News.NOTHING:
        return False
    if news is News.BEGINS:
        is_other = name in state.topics
        state.begin(name, new.event.topic_created_at, began_with(new.layout) if is_other else None, now)
    topic = state.topics[name]
    if topic.known is None:
        loads.forget_before(name, max(topic.since, now - MAX_WAIT_FOR_LAYOUT_MS))
    if topic.created_at is None and new.event.topic_created_at is not None:
        state.touch(name).created_at = new.event.topic_created_at
    if sender > topic.layout_sender:
        state.touch(name).layout_sender = sender
    if news is News.ITS_SENDER:
        return False
    state.touch(name)
    override_before = topic.override
    follow_lineage(topic, read, now, loads)
    state.set_layout(topic, read.known(topic.merge_depths))
    if reporting := loads.index.segments_of(name):
        active = topic.active_ids
        loads.keep_segments(name, [i for i in reporting if i in active or i >= read.next_segment_id])
    if override_before != topic.override:
        loads.judge_coldness_again(name, policies.of(state, topic).merge_thresholds)
    if topic.open_decision is not None:
        topic.set_open([decision for decision in topic.all_open if not is_done(decision, read.epoch, topic.active_ids)])
    return True


def follow_lineage(topic: TopicState, read: ReadLayout, now: int, loads: LoadTable) -> None:
    """Update clocks, merge depths and history from the segments that a committed layout adds."""
    if topic.known is None and not read.has_parents and not topic.merge_depths:
        # Shortcut with the result of the code below where nothing was split or merged yet.
        topic.merge_depths = {number: 0 for _, number, _ in read.active}
        return
    segments, layout = topic.known.layout.segments if topic.known else {}, read.layout
    topic.cooldowns = cooldowns_after_layout(topic.cooldowns, segments, layout, now)
    topic.merge_depths = depths_after_layout(topic.merge_depths, topic.pasts, segments, layout, now)
    topic.pasts = past_after_layout(topic.pasts, segments, layout, now, loads.returned_of(topic.name))


def store_deletion(state: BucketState, loads: LoadTable, deletion: TopicDeleted, news: News, now: int) -> bool:
    """Remove a deleted topic; keep a record of the deletion and its sender."""
    event = deletion.event
    if news is News.ALL:
        state.end(event.topic, TopicEnd(min(event.at, now), event.topic_created_at, event.sender or 0, now))
        loads.keep_segments(event.topic, ())
    return False


def store_consumers(state: BucketState, loads: LoadTable, event: ConsumerAnnouncement, news: News, now: int) -> bool:
    """Apply the current sessions of a subscription."""
    name, topic, sender = event.topic, state.topics.get(event.topic), event.sender or 0
    if news is News.NOTHING or (topic is None and event.event == "deleted"):
        return False
    if news is News.BEGINS:
        topic = state.begin(name, event.topic_created_at, None, now)
        loads.forget_before(name, topic.since)
    assert topic is not None
    if topic.known is None:
        state.touch(name).heard_at = now
    if sender > topic.consumers_sender:
        state.touch(name).consumers_sender = sender
    if news is News.ITS_SENDER:
        return False
    if event.event != "deleted":
        state.touch(name).consumers[event.subscription] = (event.type, event.consumers)
    elif event.subscription in topic.consumers:
        del state.touch(name).consumers[event.subscription]
    return True


def store_policy(
    state: BucketState, loads: LoadTable, policies: Policies, event: PolicyEvent, news: News, now: int
) -> bool:
    """Apply an override, or the job's configured policy, and recompute coldness under it."""
    if news is News.NOTHING:
        return False
    key, sender = event.name or "", event.sender or 0
    newest = state.policy_senders.get(key)
    override = event.policy.known_json() if event.policy else None
    if event.profile is not None:
        # A job announces its policy at every start: if the thresholds are unchanged, merge windows of cold segments
        # continue.
        before = policies.of_cluster(state).merge_thresholds
        state.set_configured(ConfiguredPolicy(event.profile, override))
        changed = not np.array_equal(before, policies.of_cluster(state).merge_thresholds)
    else:
        changed = state.set_policy(event.name, override)
    if event.sender is not None and (newest is None or sender > newest.sender or changed):
        state.set_policy_sender(key, PolicySender(sender, now))
    if changed:
        for topic in state.topics.values():
            if event.name is None or topic.name.startswith(f"topic://{event.name}/"):
                loads.judge_coldness_again(topic.name, policies.of(state, topic).merge_thresholds)
    return False


def store_outcome(state: BucketState, event: OutcomeEvent, decision: OpenDecision | None, now: int) -> bool:
    """Close the topic's open decision and update its failures; `decision` None: it is of another."""
    if decision is None:
        return False
    topic = state.touch(event.topic)
    if event.absent:
        topic.failures = failures_after_absence(topic.failures, decision.since, now)
    else:
        topic.failures = failures_after_outcome(topic.failures, decision.action, event.status, now)
    topic.observed_at = now if event.status == "observed" else None
    epoch, active = (topic.known.epoch, topic.active_ids) if topic.known else (None, frozenset[int]())
    after = open_after_outcome(decision, event.status, epoch, active)
    decisions = [after if opened is decision else opened for opened in topic.all_open]
    topic.set_open([opened for opened in decisions if opened is not None])
    return True


def store_samples(
    loads: LoadTable,
    rows: Ints,
    rates: Floats,
    origins: Origins,
    since: Ints,
    now: int,
    change_threshold: float,
    crossing_thresholds: Floats,
    merge_thresholds: Floats,
) -> Codes:
    """Filter n samples, apply the significant ones to their rows, and return their codes.

    Codes as in `significant_samples`. `since` is the start of the topic's incarnation. The thresholds (n x 12 and n
    x 4, or one row for all) are those of each sample's topic. Samples of one row are applied one after the other.
    """
    codes = np.zeros(len(rows), np.int8)
    for chosen in distinct_rounds(rows, loads.index.count):
        of_round, crossing, merge = (
            (of_all if len(of_all) == 1 else of_all[chosen])
            for of_all in (rates, crossing_thresholds, merge_thresholds)
        )
        chosen_origins = origins.of(chosen)
        chosen_codes = significant_samples(
            loads, rows[chosen], of_round, chosen_origins, since[chosen], now, change_threshold, crossing
        )
        loads.record(rows[chosen], chosen_codes, of_round, chosen_origins, merge)
        codes[chosen] = chosen_codes
    return codes

"""The executor on a real Pulsar 5, while Pulsar's own client produces and consumes, and while the broker goes away."""

from __future__ import annotations

import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from anabranch.local.pulsar.load import KeyedDemand, KeyedLoad, keyed_load
from anabranch.local.pulsar.standalone import StandalonePulsar
from tests.executor.conftest import House
from tests.executor.gate import LOST_AFTER, open_gate
from tests.harness.pulsar.client_log import dropped_receipts
from tests.waiting import wait_until

pytestmark = pytest.mark.pulsar

PATIENCE_S = 120
POLL_SECONDS = 0.5
"""The client tells its counts four times a second, and the log of the broker is long."""
AFTER_A_RESTART_S = 90
"""The client of 5.0.0-M1 tries again after a minute, and the broker looks for what is drained after 2, 4, 8, … s."""
RESTARTS = 3
"""A client of 5.0.0-M1 that hears of its topic before its session is known to it stays idle until the next one."""
FENCED = "Attempting to subscribe to a fenced topic {{topic=segment://{}/([^}}]+)}}"
FOR_GOOD = 8
"""So often a client has asked within some ten seconds, longer and longer after the time before."""
PRUNED = r"TopicDoesNotExistException.*Topic not found segment://{}/"
"""A send that the client of 5.0.0-M1 kept for an ended segment until that was pruned (docs/pulsar.md)."""
MIDDLE_S = 0.03
"""After the call, which takes a Pulsar some 0.1 s: children made, the parent ended, and then the layout changed."""


@pytest.fixture
def pulsar_house(pulsar: StandalonePulsar, empty_lake: Path, tmp_path: Path) -> Iterator[House]:
    """A fresh lake, and a gate before the session's Pulsar; topics of a test have names of their own."""
    lake = str(shutil.copytree(empty_lake, tmp_path / "lake"))
    with httpx.Client(base_url=pulsar.admin_url, timeout=30) as client, open_gate(pulsar.admin_url) as gate:
        yield House(lake, SimpleNamespace(url=pulsar.admin_url, client=client), gate, "public/default")  # type: ignore[arg-type]


def flows(load: KeyedLoad, log: Path, pulsar: StandalonePulsar, topic: str, segments: int, more: int = 500) -> int:
    """Wait until `more` messages have come, and messages of so many segments in all.

    A broker of 5.0.0-M1 may keep a segment that it ended fenced until it is started anew, if the client's connection
    broke just then (docs/pulsar.md), and a client may stay idle: the broker is killed and started where its log says
    so, or nothing comes. Return how often that was done.
    """
    before = load.counts.get("received", 0)

    def has_come() -> bool:
        return load.counts.get("received", 0) >= before + more and len(load.counts["segments"]) >= segments

    def stays_fenced() -> bool:
        asked = Counter(re.findall(FENCED.format(topic.removeprefix("topic://")), pulsar.log.read_text()))
        return any(times >= FOR_GOOD for times in asked.values())

    try:
        with suppress(AssertionError):
            wait_until(lambda: has_come() or stays_fenced(), PATIENCE_S, POLL_SECONDS)
        if has_come():
            return 0
        for restart in range(1, RESTARTS + 1):
            pulsar.kill()
            pulsar.start()
            with suppress(AssertionError):
                wait_until(has_come, AFTER_A_RESTART_S, POLL_SECONDS)
                return restart
        raise AssertionError(f"not after {RESTARTS} restarts of the broker either")
    except AssertionError as error:
        wanted = f"{more} more than {before}, of {segments} segments: {load.counts}"
        raise AssertionError(f"{wanted}\n{log.read_text()[-2000:]}\n{load.threads()}") from error


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("in_flight", [1, pytest.param(500, marks=pytest.mark.soak)])
def test_no_message_is_lost_under_splits_and_merges(
    pulsar_house: House, pulsar: StandalonePulsar, pulsar_jars: Path, tmp_path: Path, in_flight: int
) -> None:
    house, log = pulsar_house, tmp_path / "load.log"
    topic = house.create(f"loaded-{in_flight}")
    with (
        keyed_load(pulsar_jars, pulsar.service_url, topic, log, KeyedDemand(1000, 50, in_flight)) as load,
        house.running(poll_ms=100),
    ):
        restarts = flows(load, log, pulsar, topic, 1)
        for segments, seen in (((0,), 3), ((1,), 5), ((3, 4), 6)):
            one = house.decide(topic, *segments)
            house.commit(one)
            assert house.end(one, PATIENCE_S)["status"] == "applied"
            restarts += flows(load, log, pulsar, topic, seen)
        counts = load.finish()
    assert counts["finished"], log.read_text()[-2000:]
    pruned = PRUNED.format(topic.removeprefix("topic://"))
    failed = [error for error in counts["errors"] if in_flight == 1 or not re.search(pruned, error)]
    assert (counts["missing"], failed) == (0, [])
    assert counts["received"] >= counts["acknowledged"] > 2000
    # Root, two splits, one merge, each of them once: Pulsar prunes what is drained, which counts as an epoch as well.
    assert house.layout(topic).next_segment_id == 1 + 2 + 2 + 1
    print(f"{in_flight} in flight: {counts}")
    if in_flight == 1:
        # With many in flight the client of 5.0.0-M1 sends those that were on their way when a segment ended again: in
        # another order, and some of them though they had arrived. A broker that is killed forgets acknowledgements.
        assert counts["inversions"] == 0, log.read_text()[:3000]
        assert counts["redelivered"] == 0 or restarts, log.read_text()[:3000]
        assert counts["resent"] <= dropped_receipts(log) + restarts, log.read_text()[:3000]


def test_unanswered_split_known_by_layout(pulsar_house: House) -> None:
    house = pulsar_house
    topic = house.create("lost-answer")
    split = house.decide(topic, 0)
    house.gate.on("POST", LOST_AFTER)
    with house.running():
        house.commit(split)
        assert house.end(split, PATIENCE_S)["status"] == "applied"
    assert (house.layout(topic).epoch, house.gate.count("POST")) == (1, 1)


def test_split_refused_with_500_superseded_by_layout(pulsar_house: House) -> None:
    house = pulsar_house
    topic = house.create("foreign", 2)
    late = house.decide(topic, 0)
    house.gate.before_next("POST", lambda: house.post(topic, "merge/0/1"))
    with house.running():
        house.commit(late)
        assert house.end(late, PATIENCE_S)["status"] == "superseded"
    assert house.layout(topic).epoch == 1


@pytest.mark.soak
def test_broker_kill_during_split_splits_once(pulsar_house: House, pulsar: StandalonePulsar) -> None:
    house = pulsar_house
    topic = house.create("killed", 2)
    split, merge = house.decide(topic, 0), house.decide(topic, 0, 1)
    house.gate.before_next("POST", threading.Timer(MIDDLE_S, pulsar.kill).start)
    with house.running(retry_seconds=(0.5, 1.0), poll_ms=100):
        house.commit(split)
        wait_until(lambda: pulsar.process is not None and pulsar.process.poll() is not None, PATIENCE_S)
        pulsar.start()
        assert house.end(split, PATIENCE_S)["status"] == "applied"
        house.commit(merge)
        assert house.end(merge, PATIENCE_S)["status"] == "superseded"
    assert [segment.segment_id for segment in house.layout(topic).active] == [2, 3, 1]
    assert house.layout(topic).epoch == 1


def test_broker_kill_during_merge_merges_once(
    pulsar_house: House, pulsar: StandalonePulsar, pulsar_jars: Path, tmp_path: Path
) -> None:
    """A decision before its call is made after the kill."""
    house, log = pulsar_house, tmp_path / "load.log"
    joined, waiting = house.create("joined", 2), house.create("waiting", 2)
    merge, later, foreign = house.decide(joined, 0, 1), house.decide(waiting, 1), house.decide(joined, 0)
    house.gate.before_next("POST", threading.Timer(MIDDLE_S, pulsar.kill).start)
    load = partial(keyed_load, pulsar_jars, pulsar.service_url, joined, log, KeyedDemand(300, 50, 1))
    with house.running(retry_seconds=(0.5, 1.0), poll_ms=100):
        with load() as before:
            flows(before, log, pulsar, joined, 2, 100)
            house.commit(merge)
            wait_until(lambda: pulsar.process is not None and pulsar.process.poll() is not None, PATIENCE_S)
        # Decided and written down, but no broker is there to be called.
        house.commit(later)
        wait_until(lambda: {row["status"] for row in house.outcomes(later)} == {"intent"}, PATIENCE_S)
        pulsar.start()
        assert [house.end(one, PATIENCE_S)["status"] for one in (merge, later)] == ["applied"] * 2
        house.commit(foreign)
        assert house.end(foreign, PATIENCE_S)["status"] == "superseded"
    # Another client: one whose broker goes away tries again after a minute.
    with load() as after:
        flows(after, log, pulsar, joined, 1, 100)
        counts = after.finish()
    assert (counts["finished"], counts["missing"]) == (True, 0), log.read_text()[-2000:]
    ids = {topic: [one.segment_id for one in house.layout(topic).active] for topic in (joined, waiting)}
    assert ids == {joined: [2], waiting: [0, 2, 3]}
    assert (house.layout(joined).next_segment_id, house.layout(waiting).next_segment_id) == (3, 4)


def test_pulsar_does_one_of_two_concurrent_calls(pulsar_house: House) -> None:
    """What docs/decisions/0023 says of a call that comes late."""
    house = pulsar_house
    for number in range(3):
        topic = house.create(f"at-once-{number}", 2)
        path = f"/admin/v2/scalable/{topic.removeprefix('topic://')}"
        with ThreadPoolExecutor(3) as threads:
            calls = [f"{path}/{call}" for call in ("split/0", "merge/0/1", "split/0")]
            answers = list(threads.map(house.controller.client.post, calls))
        assert sorted(answer.status_code for answer in answers) == [204, 500, 500]
        assert house.layout(topic).epoch == 1
        house.layout(topic).check()
        assert {house.controller.client.post(call).status_code for call in calls} == {500}
        assert house.layout(topic).epoch == 1

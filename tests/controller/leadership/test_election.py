"""Leader election on both stores; on ZooKeeper with several nodes, lost sessions and a killed leader."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from anabranch.controller.leadership.election import NO_LEADER, Election, LeaderElectionState, Leadership
from anabranch.controller.metadata.base import Check, MetadataStore, Put, VersionConflict
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from tests.controller.places import Place, end_zookeeper_session
from tests.harness.chaos.nodes import Link
from tests.harness.zookeeper import EmbeddedZooKeeper
from tests.waiting import wait_until

PATH = "/topics/orders/leader"


class Candidate:
    """One candidate and all notifications that it got."""

    def __init__(self, store: MetadataStore, value: bytes) -> None:
        self.store, self.told = store, list[Leadership]()
        self.election = Election(store, PATH, value, self.told.append)
        self.election.start()

    def wait_for(self, state: LeaderElectionState, leader: bytes | None = None) -> Leadership:
        """Its state once it has this state (under this leader)."""
        wait_until(
            lambda: self.election.leadership.state is state and leader in (None, self.election.leadership.leader), 60
        )
        return self.election.leadership


@pytest.fixture
def zookeeper_place(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place on ZooKeeper: for what needs several nodes."""
    one = Place(tmp_path_factory.mktemp("unused"), zookeeper)
    yield one
    one.close()


def test_single_node_leads_and_commits(place: Place) -> None:
    node = Candidate(place.open(), b"http://one")
    leadership = node.wait_for(LeaderElectionState.LEADING, b"http://one")
    assert leadership.version is not None
    node.store.commit(Check(PATH, leadership.version), Put("/topics/orders/layout", b"{}"))
    wait_until(lambda: node.told == [leadership])


def test_second_candidate_leads_after_release(place: Place) -> None:
    store = place.open()
    first, second = Candidate(store, b"http://one"), Candidate(store, b"http://two")
    old = first.wait_for(LeaderElectionState.LEADING)
    second.wait_for(LeaderElectionState.FOLLOWING, b"http://one")
    first.election.close()
    new = second.wait_for(LeaderElectionState.LEADING)
    assert first.election.leadership == NO_LEADER
    wait_until(lambda: first.told[-1] == NO_LEADER)
    assert old.version is not None
    assert new.version is not None
    with pytest.raises(VersionConflict):
        store.commit(Check(PATH, old.version), Put("/topics/orders/layout", b"{}"))


def test_a_closed_candidate_does_not_come_back(place: Place) -> None:
    store = place.open()
    first, second = Candidate(store, b"http://one"), Candidate(store, b"http://two")
    second.election.close()
    first.election.close()
    assert store.get(PATH) is None
    assert second.election.leadership == NO_LEADER


def test_a_node_is_not_led_by_its_own_former_life(zookeeper_place: Place) -> None:
    former, now = zookeeper_place.open(), zookeeper_place.open()
    former.create_ephemeral(PATH, b"http://one")
    node = Candidate(now, b"http://one")
    assert node.election.leadership == NO_LEADER
    former.close()
    node.wait_for(LeaderElectionState.LEADING)


def test_lost_session_yields_to_another_candidate(zookeeper_place: Place) -> None:
    """The loser does not lead again at once."""
    one, two = zookeeper_place.open(), zookeeper_place.open()
    first, second = Candidate(one, b"http://one"), Candidate(two, b"http://two")
    old = first.wait_for(LeaderElectionState.LEADING)
    assert isinstance(one, ZooKeeperStore)
    end_zookeeper_session(one)
    wait_until(lambda: first.election.leadership != old)
    second_or_first = wait_until(
        lambda: next((node for node in (first, second) if node.election.leadership.is_leading), None)
    )
    other = second if second_or_first is first else first
    other.wait_for(LeaderElectionState.FOLLOWING)
    wait_until(lambda: NO_LEADER in first.told[1:])
    assert old.version is not None
    with pytest.raises(VersionConflict):
        one.commit(Check(PATH, old.version), Put("/topics/orders/layout", b"{}"))


def test_session_change_ends_leading_before_callback(zookeeper_place: Place) -> None:
    store = zookeeper_place.open()
    held = threading.Event()

    def hold_up(*_: object) -> None:
        # Longer than all below takes: who ends the session may need many seconds where the machine is busy.
        held.wait(120)

    store.on_session(hold_up)
    node = Candidate(store, b"http://one")
    node.wait_for(LeaderElectionState.LEADING)
    wait_until(lambda: len(node.told) == 1)
    # From here on both threads of the store stand still at their next callback.
    store.watch("/hold-up", hold_up)
    store.put("/hold-up", b"")
    changes = store.session_changes
    assert isinstance(store, ZooKeeperStore)
    end_zookeeper_session(store)
    wait_until(lambda: store.session_changes > changes)
    try:
        assert node.election.leadership == NO_LEADER
        assert len(node.told) == 1
    finally:
        held.set()
    node.wait_for(LeaderElectionState.LEADING)


def test_leadership_survives_server_restart(zookeeper: EmbeddedZooKeeper, zookeeper_place: Place) -> None:
    node = Candidate(zookeeper_place.open(), b"http://one")
    before = node.wait_for(LeaderElectionState.LEADING)
    wait_until(lambda: node.told == [before])
    zookeeper.kill()
    wait_until(lambda: node.election.leadership == NO_LEADER)
    zookeeper.start()
    assert node.wait_for(LeaderElectionState.LEADING) == before
    wait_until(lambda: node.told == [before, NO_LEADER, before])


def test_a_connection_without_an_answer_costs_no_session(zookeeper: EmbeddedZooKeeper) -> None:
    """A starting server may accept a connection and never answer: seen once, for 30 seconds, in a session of 30."""
    with closing(Link(zookeeper.address)) as link, closing(ZooKeeperStore(link.address, "/silent", 30)) as store:
        node = Candidate(store, b"http://one")
        before = node.wait_for(LeaderElectionState.LEADING)
        link.swallow()
        assert link.swallowed.wait(30)
        assert node.wait_for(LeaderElectionState.LEADING) == before
        wait_until(lambda: node.told == [before, NO_LEADER, before])


def test_killed_leader_is_succeeded(zookeeper_place: Place) -> None:
    assert zookeeper_place.zookeeper
    command = [sys.executable, "-m", "tests.controller.leadership.candidate", zookeeper_place.zookeeper.address]
    command += [zookeeper_place.root, PATH, "http://one"]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout
        assert first.stdout.readline() == "leading\n"
        second = Candidate(zookeeper_place.open(), b"http://two")
        second.wait_for(LeaderElectionState.FOLLOWING, b"http://one")
        first.kill()
        second.wait_for(LeaderElectionState.LEADING)
    finally:
        first.kill()
        first.communicate()

"""Topics that this node leads (PIP-468 "Leader Election and Failover", "ScalableTopicService").

A controller of a topic is made on demand: by the first change of a topic without a leader, and by the housekeeper for
topics that a dead node has left. A follower keeps no state of a topic and looks up the leader when asked, so ten
thousand topics cost it nothing. Every write names its `Term`: work begun in one term cannot be finished in another.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.controller.errors import NotLeader, Unavailable
from anabranch.controller.leadership.election import Election, LeaderElectionState, Leadership
from anabranch.controller.leadership.known_nodes import KnownNodes
from anabranch.controller.locks import NamedLocks
from anabranch.controller.metadata.base import Check, Delete, MetadataStore, SessionState, StoreError, VersionConflict
from anabranch.controller.metadata.store_paths import attended_path, leader_path, topic_path

log = logging.getLogger(__name__)

TopicCallback = Callable[[str], None]
_SILENT_PART, _LOOKS = 0.5, 10
"""Longest silence of the store, as a share of a session; and number of checks per session."""


@dataclass(frozen=True)
class Term:
    """Period for which this node leads a topic: as long as the leader node has this version."""

    topic: str
    version: int

    @property
    def check(self) -> Check:
        """Check that a commit of this term includes."""
        return Check(leader_path(self.topic), self.version)


@dataclass
class _Controller:
    """A topic that this node leads, or led when the store was last reachable."""

    election: Election | None = None
    version: int | None = None
    """Version of the term that began last."""
    used_at: float = field(default_factory=time.monotonic)
    led_at: float = field(default_factory=time.monotonic)
    """Time at which it was last seen leading."""


class Leaders:
    """All topic controllers of the node at `url`. Thread-safe."""

    def __init__(self, nodes: MetadataStore, url: str, known_nodes: KnownNodes | None = None) -> None:
        """`known_nodes`: trusted addresses for redirects; default: all addresses in the store."""
        self.url = url
        self.known = known_nodes or KnownNodes(url, store_is_closed=True)
        self.stopping = threading.Event()
        """Set when the node is about to end: rounds over all topics, which could take minutes, break off."""
        self.on_begun: list[TopicCallback] = []
        """Called with the topic of every term that begins, from any thread; must be quick."""
        self.on_ended: list[TopicCallback] = []
        """Called with the topic of every term that has ended, before the next one begins; must be quick."""
        self._nodes = nodes
        self._value = url.encode()
        self._controllers: dict[str, _Controller] = {}
        self._heard_at = time.monotonic()
        """Time at which the store was last reachable."""
        self._guard = threading.Lock()
        self._alone = NamedLocks()

    def lead(self, topic: str) -> Term:
        """Return this node's current term; stand for election if the topic has no leader.

        Raises `NotLeader` with the address of another leader, `Unavailable` while there can be none.
        """
        with self._alone.locked(topic):
            if (controller := self._controllers.get(topic)) is None:
                self._follow(self._stored_leader(topic), topic)
                controller = self._begin(topic)
            assert controller.election is not None
            controller.used_at = time.monotonic()
            if not controller.election.leadership.is_leading:
                # The store was unreachable for a moment, and has not called back yet.
                controller.election.stand()
            leadership = controller.election.leadership
            if leadership.state is LeaderElectionState.LEADING and leadership.version is not None:
                return Term(topic, leadership.version)
            if leadership.state is LeaderElectionState.FOLLOWING:
                self._end(topic, controller)
            self._follow(self._stored_leader(topic), topic)
            reason = controller.election.failure or "a session of its leader is about to end"
        raise Unavailable(f"nobody leads {topic} at this moment, ask again: {reason}")

    def leader(self, topic: str) -> str | None:
        """Return the address of the leader, for clients; None: there is none, or it is not trusted."""
        url = self._stored_leader(topic)
        return url if url is not None and self.known.believe(url) else None

    def redirect(self, topic: str) -> None:
        """Raise `NotLeader` if another node leads the topic."""
        if topic not in self._controllers:
            self._follow(self._stored_leader(topic), topic)

    def term(self, topic: str) -> Term | None:
        """Return the current term, None if this node does not lead; never queries the store."""
        controller = self._controllers.get(topic)
        if controller is None or controller.election is None:
            return None
        leadership = controller.election.leadership
        return (
            Term(topic, leadership.version)
            if leadership.state is LeaderElectionState.LEADING and leadership.version is not None
            else None
        )

    def topics(self) -> list[str]:
        """Return the topics that this node has a controller of."""
        with self._guard:
            return list(self._controllers)

    def idle(self, seconds: float) -> list[str]:
        """Return the topics without a request for `seconds`."""
        before = time.monotonic() - seconds
        with self._guard:
            return [topic for topic, controller in self._controllers.items() if controller.used_at < before]

    def release(self, topic: str, idle_seconds: float = 0) -> bool:
        """Stop leading a topic, and clear its need for a leader.

        Returns False if this node does not lead it, or there was a request in the last `idle_seconds`.
        """
        with self._alone.locked(topic):
            controller, term = self._controllers.get(topic), self.term(topic)
            if controller is None or term is None or time.monotonic() - controller.used_at < idle_seconds:
                return False
            deletions = [Delete(term.check.path, term.version)]
            if self._nodes.get(attended_path(topic)):
                deletions.append(Delete(attended_path(topic)))
            topic_node = self._nodes.get(topic_path(topic))
            if topic_node and not topic_node.value and self._nodes.children(topic_path(topic)) == ["controller"]:
                # Created for the election of a topic that was never created, or is deleted.
                deletions.append(Delete(topic_path(topic), topic_node.version))
            assert controller.election is not None
            if not controller.election.resign(lambda: self._committed(deletions)):
                return False
            self._end(topic, controller)
            return True

    def _committed(self, ops: list[Delete]) -> bool:
        try:
            self._nodes.commit(*ops)
        except VersionConflict:
            return False
        return True

    def end_unconfirmed(self, seconds: float) -> None:
        """End the terms that were not confirmed for `seconds`: another node may lead by now."""
        now = time.monotonic()
        for topic in self.topics():
            if (controller := self._controllers.get(topic)) is None:
                continue
            if self.term(topic):
                controller.led_at = now
            elif now - controller.led_at > seconds:
                with self._alone.locked(topic):
                    self._end(topic, controller)

    def end_unheard(self, seconds: float) -> None:
        """End all terms if the store was unreachable for `seconds`; call it more often than that.

        This disconnects the consumers of this node before another leader can have reassigned their segments.
        """
        now = time.monotonic()
        if self._nodes.session is SessionState.CONNECTED:
            self._heard_at = now
        if now - self._heard_at <= seconds:
            return
        # Notify all before waiting for the store: an election may be waiting for it.
        for controller in [self._forget(topic) for topic in self.topics()]:
            if controller is not None and controller.election is not None:
                controller.election.close()

    def _forget(self, topic: str) -> _Controller | None:
        """Drop a topic's controller and notify listeners; its election runs until it is closed."""
        with self._guard:
            controller = self._controllers.pop(topic, None)
        if controller is not None and controller.version is not None:
            for tell in self.on_ended:
                tell(topic)
        return controller

    def _begin(self, topic: str) -> _Controller:
        controller = _Controller()
        election = Election(
            self._nodes,
            leader_path(topic),
            self._value,
            lambda leadership: self._changed(topic, controller, leadership),
        )
        controller.election = election
        with self._guard:
            self._controllers[topic] = controller
        try:
            election.start()
        except StoreError:
            self._end(topic, controller)
            raise
        return controller

    def _end(self, topic: str, controller: _Controller) -> None:
        with self._guard:
            if self._controllers.get(topic) is not controller:
                return
            del self._controllers[topic]
        if controller.version is not None:
            for tell in self.on_ended:
                tell(topic)
        if controller.election is not None:
            controller.election.close()

    def _changed(self, topic: str, controller: _Controller, leadership: Leadership) -> None:
        """Handle a change of leadership; one call at a time."""
        if self._controllers.get(topic) is not controller:
            return
        if leadership.state is LeaderElectionState.LEADING and leadership.version != controller.version:
            if controller.version is not None:
                # Another node may have led in between.
                for tell in self.on_ended:
                    tell(topic)
            controller.version = leadership.version
            log.debug("leads %s", topic)
            for tell in self.on_begun:
                tell(topic)
        elif leadership.state is LeaderElectionState.FOLLOWING:
            log.info("%s is led by %s now", topic, leadership.leader.decode() if leadership.leader else "another node")
            self._end(topic, controller)

    def _stored_leader(self, topic: str) -> str | None:
        node = self._nodes.get(leader_path(topic))
        return node.value.decode("utf-8", "replace") if node else None

    def _follow(self, url: str | None, topic: str) -> None:
        if url is None or url == self.url:
            return
        if not self.known.believe(url):
            raise Unavailable(
                f"the metadata store names a leader of {topic} whose address, {url[:200]!a}, is not one of "
                "controller.nodes: clients are not sent there"
            )
        raise NotLeader(topic, url)


class TermWatch:
    """Thread that ends the terms of a node cut off from the store; consumers may still be connected.

    The next leader lets them keep their segments for the grace period, which is at least a session; so this node
    disconnects them before that. A thread of its own: nothing that waits for the store delays it.
    """

    def __init__(self, leaders: Leaders, session_seconds: float) -> None:
        self._leaders, self._session_s = leaders, session_seconds
        self._thread = threading.Thread(target=self._run, name="term-watch", daemon=True)

    def start(self) -> None:
        """Start the thread; it ends when `leaders` stop."""
        self._thread.start()

    def _run(self) -> None:
        while not self._leaders.stopping.wait(self._session_s / _LOOKS):
            try:
                self._leaders.end_unheard(self._session_s * _SILENT_PART)
            except Exception:
                log.exception("terms of this node may be over and cannot be ended; trying again")

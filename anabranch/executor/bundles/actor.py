"""Look at bundles and their owners, unload and split, through the admin REST interface.

Stage: the kernel calls it for rows of the family `bundles`; `anabranch.executor.process` makes one. The interface
serves one cluster; decisions on another one are not acted on. Needs super-user rights.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from anabranch.admin.answers import Answered, Fault, Lost, Misdirected, NotConnected, Refused, Reply, ServerFault
from anabranch.admin.bundles import BundleAdmin
from anabranch.admin.cluster import ClusterAdmin
from anabranch.admin.connections import only_while
from anabranch.admin.transport import Transport
from anabranch.executor.bundles.decision import BundleChange, Unload, read_bundle_decision
from anabranch.executor.bundles.judge import OWN_BALANCER, LiveBundle, judge, still_moving
from anabranch.executor.kernel.family import Answer, NoAnswer, Observation, StillNeeded, Verdict
from anabranch.executor.replies import answer_to_call, no_answer

_AT_ONCE = 8
"""Brokers that are asked at the same time."""
_REMEMBERED = 10_000
"""Maximum number of decisions whose accepted calls are counted."""


class BundlesActor:
    """Actor for the bundles of one cluster; an `anabranch.executor.kernel.family.Actor`."""

    def __init__(self, transport: Transport, *, observes: bool = False) -> None:
        """`observes`: no calls are made, so the cluster may run its own balancer."""
        self._observes = observes
        self._accepted: dict[str, int] = {}
        """Accepted calls by decision, of the most recent decisions."""
        self._cluster, self._bundles = ClusterAdmin(transport), BundleAdmin(transport)

    def read(self, row: Mapping[str, Any]) -> BundleChange:
        """Return the unload or split in a row of `decisions`. Raises `MalformedDecision`."""
        return read_bundle_decision(row)

    def namespace(self, subject: str) -> str | None:
        """Return None: a cluster has no namespace."""
        return None

    def look(self, decision: BundleChange) -> LiveBundle | NoAnswer:
        """Return the bundle and its current owner."""
        settings = self._cluster.broker_configuration()
        if not isinstance(settings, Answered):
            return _outage("GET the broker's settings", settings)
        cluster = str(settings.value.get("clusterName", ""))
        ranges = self._bundles.ranges(decision.namespace)
        if isinstance(ranges, Refused) and ranges.status == 404 and ranges.from_interface:
            return LiveBundle(cluster, None)
        if not isinstance(ranges, Answered):
            return _outage(f"GET the bundles of {decision.namespace}", ranges)
        brokers = self._cluster.brokers()
        if not isinstance(brokers, Answered):
            return _outage("GET the brokers", brokers)
        live = LiveBundle(cluster, ranges.value, tuple(brokers.value))
        if isinstance(decision, Unload) and decision.range in ranges.value:
            owner = self._owner(decision, cluster, brokers.value)
            if not isinstance(owner, Answered):
                return _outage("GET", owner, f"the owner of {decision.bundle} is not known: ")
            live = replace(live, owner=owner.value)
        if self._observes or not isinstance(self.judge(decision, live, False), StillNeeded):
            return still_moving(decision, live) or live
        balancing = self._find_balancing(decision, brokers.value)
        if not isinstance(balancing, Answered):
            return _outage("GET", balancing, f"{OWN_BALANCER}: the settings of a broker are not known: ")
        return replace(live, balancing=balancing.value)

    def judge(self, decision: BundleChange, live: LiveBundle, may_have_called: bool) -> Verdict:
        """Judge a decision by current ownership (`anabranch.executor.bundles.judge`)."""
        return judge(decision, live, may_have_called, self._accepted.get(decision.decision_id) == 1)

    def describe(self, decision: BundleChange, live: LiveBundle) -> Observation:
        """Describe the cluster, the owner and the number of bundles in the namespace."""
        bundles = None if live.ranges is None else len(live.ranges)
        return Observation({"cluster": live.cluster, "owner": live.owner, "bundles": bundles})

    def call(self, decision: BundleChange, live: LiveBundle, may_send: Callable[[], bool]) -> Answer:
        """Unload or split the bundle, in one call."""
        with only_while(may_send):
            if isinstance(decision, Unload):
                reply = self._bundles.unload(decision.namespace, decision.range, decision.destination)
                if isinstance(reply, Answered):
                    self._count(decision.decision_id)
                return answer_to_call(reply)
            return answer_to_call(self._bundles.split(decision.namespace, decision.range, decision.positions))

    def _count(self, decision_id: str) -> None:
        self._accepted[decision_id] = self._accepted.pop(decision_id, 0) + 1
        if len(self._accepted) > _REMEMBERED:
            self._accepted.pop(next(iter(self._accepted)), None)

    def _find_balancing(self, decision: BundleChange, brokers: list[str]) -> Reply[str | None]:
        """Return a broker, not only the leader, whose own balancer makes such changes, or None."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            replies = dict(zip(brokers, pool.map(self._settings_of, brokers), strict=True))
        faults = [reply for reply in replies.values() if not isinstance(reply, Answered)]
        for broker, reply in replies.items():
            if isinstance(reply, Answered) and _balances_itself(reply.value, decision.own_switches):
                return Answered(broker)
        return faults[0] if faults else Answered(None)

    def _settings_of(self, broker: str) -> Reply[dict[str, Any]]:
        way = self._cluster.at_broker(broker)
        return way if isinstance(way, Misdirected) else ClusterAdmin(way).broker_configuration()

    def _owner(self, decision: Unload, cluster: str, brokers: list[str]) -> Reply[str | None]:
        """Return the broker that serves the bundle, or None.

        Source and destination are asked first, usually with success. A broker that does not answer matters only if no
        other broker has the bundle.
        """
        fault: Fault | None = None
        for broker in sorted(brokers, key=lambda name: (name not in (decision.source, decision.destination), name)):
            reply = self._bundles.owned(cluster, broker)
            if not isinstance(reply, Answered):
                fault = reply
            elif decision.bundle in reply.value:
                return Answered(broker)
        return Answered(None) if fault is None else fault


def _balances_itself(settings: Mapping[str, Any], switches: tuple[str, ...]) -> bool:
    """Return whether all switches are on. One that is missing is on, as in Pulsar."""
    return all(str(settings.get(name, "true")).strip().lower() != "false" for name in switches)


def _outage(request: str, fault: Fault, unknown: str = "") -> NoAnswer:
    """Return that a broker tells nothing; if it is away, no call is made until it is back."""
    answer = no_answer(request, fault)
    is_away = isinstance(fault, NotConnected | Lost | ServerFault)
    return replace(answer, reason=unknown + answer.reason, is_outage=is_away)

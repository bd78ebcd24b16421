"""Lists of namespaces and of their topics; topics that appear in them or vanish are looked at.

Stage: under `collector`. A list is never proof that a topic is gone: it is a reason to look at its layout (`topics`).
Pulsar 5.0.0-M1 lists a deleted topic on and on (a ghost): it is looked at again now and then only.
"""

import re
from collections.abc import Callable, Set

from anabranch.admin.answers import Answered
from anabranch.collectors.pulsar.brokers import Brokers
from anabranch.collectors.pulsar.calls import INTERVALS, CallAnswer, Kind, ReadIntervals
from schemas.base import TOPIC_PATTERN
from schemas.settings.processes import CollectSettings

_TOPIC = re.compile(TOPIC_PATTERN)

Plan = Callable[[Kind, str, float], None]
"""Plans a call of a kind and key in so many seconds."""


class ListedNamespaces:
    """Namespaces and topics listed in the cluster of `brokers`."""

    def __init__(
        self, settings: CollectSettings, brokers: Brokers, plan: Plan, intervals: ReadIntervals = INTERVALS
    ) -> None:
        self._settings, self._brokers, self._plan, self._intervals = settings, brokers, plan, intervals
        self._of_tenant: dict[str, set[str]] = {}
        self._listed: dict[str, set[str]] = {}
        """The topics of each namespace that was listed."""
        self._ghosts: dict[str, float] = {}
        """Topics that are not there, and when that was seen."""
        for namespace in settings.namespaces:
            self._add(namespace)
        if not settings.namespaces:
            plan("tenants", "", 0)

    @property
    def names(self) -> set[str]:
        """All namespaces that are read."""
        return set(self._settings.namespaces) or {
            name for namespaces in self._of_tenant.values() for name in namespaces
        }

    @property
    def tenants(self) -> Set[str]:
        """All tenants that are read."""
        return self._of_tenant.keys()

    @property
    def topics(self) -> set[str]:
        """All topics that are listed."""
        return set().union(*self._listed.values())

    @property
    def unlisted(self) -> int:
        """Number of namespaces whose topics were never listed."""
        return len(self.names - self._listed.keys())

    @property
    def all_listed(self) -> bool:
        """Return whether the topics of every namespace were listed."""
        has_tenants = bool(self._settings.namespaces) or bool(self._of_tenant)
        return has_tenants and len(self._listed) >= len(self.names)

    def take_tenants(self, answer: CallAnswer) -> None:
        """The tenants of the cluster."""
        self._plan("tenants", "", self._intervals.namespaces_s)
        if not isinstance(answer.reply, Answered):
            return
        for tenant in answer.reply.value:
            self._of_tenant.setdefault(tenant, set())
            self._plan("namespaces", tenant, 0)
        for tenant in self._of_tenant.keys() - set(answer.reply.value):
            for namespace in self._of_tenant.pop(tenant):
                self._remove(namespace)

    def take_namespaces(self, answer: CallAnswer) -> None:
        """The namespaces of a tenant; planned again by the tenants."""
        tenant = answer.call.key
        if not isinstance(answer.reply, Answered) or tenant not in self._of_tenant:
            return
        listed = {name for name in answer.reply.value if name.startswith(f"{tenant}/") and name.count("/") == 1}
        for namespace in listed - self._of_tenant[tenant]:
            self._add(namespace)
        for namespace in self._of_tenant[tenant] - listed:
            self._remove(namespace)
        self._of_tenant[tenant] = listed

    def take_topics(self, answer: CallAnswer) -> None:
        """The topics of a namespace. Long lists, and one of many, are asked for less often."""
        namespace = answer.call.key
        if namespace not in self.names:
            return
        slower = max(1.0, len(self.names) / 20, len(self._listed.get(namespace, ())) / 1_000)
        self._plan("topics", namespace, self._intervals.topics_s * slower)
        if not isinstance(answer.reply, Answered):
            return
        names = {name for name in answer.reply.value if _is_topic(name, namespace)}
        for topic in [
            ghost for ghost in self._ghosts if ghost not in names and ghost.startswith(f"topic://{namespace}/")
        ]:
            del self._ghosts[topic]
        again = answer.answered_at - self._intervals.layouts_s
        listed = {name for name in names if self._ghosts.get(name, again) <= again}
        before = self._listed.get(namespace, set())
        self._listed[namespace] = listed
        for topic in listed - before:
            self._brokers.add_topic(topic, answer.answered_at)
        for topic in before - listed:
            self._brokers.look_at_layout(topic)

    def gone(self, topic: str, instant: float) -> None:
        """A topic is not there: seen at `instant`."""
        self._ghosts[topic] = instant
        for topics in self._listed.values():
            topics.discard(topic)

    def _add(self, namespace: str) -> None:
        self._plan("topics", namespace, 0)
        self._plan("policy", namespace, 0)

    def _remove(self, namespace: str) -> None:
        for topic in self._listed.pop(namespace, ()):
            self._brokers.look_at_layout(topic)


def _is_topic(name: str, namespace: str) -> bool:
    return name.startswith(f"topic://{namespace}/") and _TOPIC.fullmatch(name) is not None

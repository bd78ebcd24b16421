"""Read-only calls about a cluster: brokers, tenants, policies, and one broker's figures.

Stage: beside `topics`, over the same transport; used by collectors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from anabranch.admin.answers import Answered, Misdirected, Nonsense, Refused, Reply, Response, judge_response
from anabranch.admin.paths import namespace_record_path, path_part
from anabranch.admin.transport import ANNOUNCED_PATH, Transport

MAX_BROKERS = 10_000


@dataclass(frozen=True)
class ReaderProgress:
    """Progress of a reader of a topic."""

    sent: int
    """Messages that its broker gave to it."""
    connected_since: str
    """Instant from which they count."""


class ClusterAdmin:
    """Cluster behind one admin interface; thread-safe. Faults are returned, never raised."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def brokers(self, cluster: str = "") -> Reply[list[str]]:
        """Return the live brokers, each `host:port`; of the server's own cluster by default."""
        reply = self._names(ANNOUNCED_PATH + (f"/{_check_name(cluster)}" if cluster else ""))
        if isinstance(reply, Answered) and len(reply.value) > MAX_BROKERS:
            return Nonsense(f"{len(reply.value)} brokers, at most {MAX_BROKERS} are read")
        return reply

    def tenants(self) -> Reply[list[str]]:
        """Return all tenants; requires a super-user."""
        return self._names("/admin/v2/tenants")

    def broker_configuration(self) -> Reply[dict[str, Any]]:
        """Return the runtime settings of the responding broker; requires a super-user."""
        reply = self._get("/admin/v2/brokers/configuration/runtime")
        if not isinstance(reply, Answered):
            return reply
        settings = _read_json(reply.value)
        return Answered(settings) if isinstance(settings, dict) else Nonsense("the settings of a broker were expected")

    def broker_stats(self) -> Reply[bytes]:
        """Return the responding broker's raw statistics of all topics that it serves."""
        # Compression would cost the broker ten times as much.
        return self._get("/admin/v2/broker-stats/topics", {"Accept-Encoding": "identity"})

    def load_report(self) -> Reply[bytes]:
        """Return the broker's `LocalBrokerData`; the extensible load manager has none and answers 500."""
        return self._get("/admin/v2/broker-stats/load-report")

    def metrics(self) -> Reply[bytes]:
        """Return the responding broker's metrics in Prometheus' text format."""
        return self._get("/metrics/")

    def version(self) -> Reply[str]:
        """Return Pulsar's version, like `4.0.7`."""
        reply = self._get("/admin/v2/brokers/version")
        return Answered(reply.value.decode("utf-8", "replace").strip('" \n')) if isinstance(reply, Answered) else reply

    def isolation_policies(self, cluster: str) -> Reply[dict[str, Any]]:
        """Return the namespace isolation policies of a cluster, by name."""
        return self._object(f"/admin/v2/clusters/{_check_name(cluster)}/namespaceIsolationPolicies")

    def failure_domains(self, cluster: str) -> Reply[dict[str, Any]]:
        """Return the failure domains of a cluster, by name."""
        return self._object(f"/admin/v2/clusters/{_check_name(cluster)}/failureDomains")

    def anti_affinity_group(self, namespace: str) -> Reply[str]:
        """Return the anti-affinity group of a namespace; empty: none."""
        reply = self._get(f"{namespace_record_path(namespace)}/antiAffinity")
        return Answered(reply.value.decode("utf-8", "replace").strip('" \n')) if isinstance(reply, Answered) else reply

    def reader_progress(self, topic: str, reader: str) -> Reply[ReaderProgress | None]:
        """Return a reader's progress on `non-persistent/TENANT/NAMESPACE/NAME`; None: it is not connected."""
        reply = self._object(f"/admin/v2/{quote(topic)}/stats")
        if not isinstance(reply, Answered):
            return reply
        try:
            for subscription in reply.value.get("subscriptions", {}).values():
                for consumer in subscription["consumers"]:
                    if consumer.get("consumerName") == reader:
                        sent, since = int(consumer["msgOutCounter"]), str(consumer["connectedSince"])
                        return Answered(ReaderProgress(sent, since))
        except (KeyError, TypeError, ValueError, AttributeError):
            return Nonsense("the statistics of a topic were expected")
        return Answered(None)

    def _object(self, path: str) -> Reply[dict[str, Any]]:
        """Return a JSON object; an empty one if there is none (404)."""
        reply = self._get(path)
        if isinstance(reply, Refused) and reply.status == 404 and reply.from_interface:
            return Answered({})
        if not isinstance(reply, Answered):
            return reply
        content = _read_json(reply.value)
        return Answered(content) if isinstance(content, dict) else Nonsense(f"{path}: an object was expected")

    def at_broker(self, broker: str) -> Transport | Misdirected:
        """Return a transport to one of `brokers`, or a fault if the token may not be sent there.

        Uses its configured address, else the announced one with the scheme of the base.
        """
        return self._transport.beside(broker)

    def _names(self, path: str) -> Reply[list[str]]:
        reply = self._get(path)
        if not isinstance(reply, Answered):
            return reply
        names = _read_json(reply.value)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return Nonsense("a list of names was expected")
        return Answered(names)

    def _get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply[bytes]:
        answer = self._transport.exchange("GET", path, headers=headers)
        return judge_response(answer) if isinstance(answer, Response) else answer


def _check_name(cluster: str) -> str:
    return path_part(quote(cluster, safe=""))


def _read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None

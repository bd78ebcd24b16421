"""A namespace with bundles on a real cluster: who has what, load by Pulsar's own client, and the job's part by hand."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from pathlib import Path

import httpx

from anabranch.admin.answers import Answered
from anabranch.admin.bundles import BundleAdmin
from anabranch.admin.transport import Transport
from anabranch.collectors.bundles import BundleRounds, Unread
from engine.bundles.clusters import ClusterState
from engine.bundles.cycle import Cycle, run_cycle
from engine.bundles.recording import decision_row
from runtime.java_home import find_java
from schemas.kafka.broker_messages import BrokerLoadReport, LocalBrokerReport, Report
from schemas.kafka.messages import key_of, parse_message
from schemas.tables.rows import DecisionRow
from tests.executor import bundle_orders, orders
from tests.executor.conftest import House
from tests.harness.pulsar.cluster import CLUSTER, EXTENSIBLE, PulsarBroker, PulsarCluster
from tests.waiting import wait_until

PATIENCE_S = 120


@dataclass
class Bundled:
    """The cluster, a client of its interface, and who has what."""

    cluster: PulsarCluster
    client: httpx.Client
    bundles: BundleAdmin
    transport: Transport
    namespace: str
    manager: str = EXTENSIBLE
    """The load manager's class."""

    def owned(self, broker: PulsarBroker) -> list[str]:
        """The namespace's bundles that a broker has."""
        reply = self.bundles.owned(CLUSTER, broker.id)
        assert isinstance(reply, Answered)
        return sorted(bundle for bundle in reply.value if bundle.startswith(f"{self.namespace}/"))

    def owners(self) -> dict[str, str]:
        """Broker by bundle of the namespace."""
        return {bundle: broker.id for broker in self.cluster.brokers if broker.runs for bundle in self.owned(broker)}

    def move(self, bundle: str, destination: str) -> None:
        """Unloads a bundle until it is where it should be: one call of the modular manager in ten ends elsewhere."""

        def arrived() -> bool:
            owner = self.owners().get(bundle)
            if owner is not None and owner != destination:
                done = self.bundles.unload(self.namespace, bundle.rpartition("/")[2], destination)
                assert isinstance(done, Answered), done
            return owner == destination

        wait_until(arrived, PATIENCE_S, every_s=0.5)


@contextmanager
def plain_load(jars: Path, bundled: Bundled, topics: int, rate: int, log: Path) -> Iterator[None]:
    """Pulsar's client sends `rate` messages a second to each of the topics t0, t1, …; what comes by REST has no
    producer, and a broker's rates are those of producers."""
    program = [
        find_java(),
        "-Xmx128m",
        "-Djava.net.preferIPv4Stack=true",
        "-cp",
        f"{jars}/*",
        "anabranch.pulsar.PlainLoad",
        bundled.cluster.brokers[0].service_url,
        bundled.namespace,
        str(topics),
        str(rate),
    ]
    with open(log, "wb") as file, subprocess.Popen(program, stdout=file, stderr=file) as load:
        try:
            yield
        finally:
            load.kill()


class Balancing:
    """The job's part by hand: what is collected is laid down, a cycle runs a minute of its own clock later, its
    decisions come on record, and how they end is told to the next."""

    def __init__(self, bundled: Bundled, house: House, chosen: dict[str, str]) -> None:
        self.bundled, self.house = bundled, house
        self._rounds = BundleRounds(bundled.transport, chosen)
        self.state, self._clock = ClusterState(CLUSTER), count(1_800_000_000_000, 60_000)
        self.reports: dict[str, Report] = {}

    def cycle(self) -> Cycle:
        """One round and its cycle. Raises `Unread`."""
        now = next(self._clock)
        for message in self._rounds.read(now):
            is_load = isinstance(message, LocalBrokerReport | BrokerLoadReport)
            source = "broker-load" if is_load else "broker-events"
            assert parse_message(source, key_of(message).encode(), message.to_json().encode()) == message
            if is_load:
                self.reports[message.broker] = message
            if self.state.is_news(message):
                self.state.store_message(message)
        found = run_cycle(self.state, now)
        assert found is not None
        return found

    def decided(self) -> Cycle:
        """The first cycle that decides something."""

        def found() -> Cycle | None:
            try:
                last.append(self.cycle())
            except Unread as error:
                unread.append(str(error))
                return None
            return last[-1] if last[-1].decided else None

        last, unread = list[Cycle](), list[str]()
        try:
            return wait_until(found, PATIENCE_S, every_s=1)
        except AssertionError as error:
            held = [str(one) for one in last[-1].shedding.readings if not one.passed][-12:] if last else unread[-1:]
            raise AssertionError(f"{held} {last and last[-1].shedding.usage}") from error

    def rate(self, broker: PulsarBroker) -> float:
        """Messages a second of all bundles of a broker, as its newest report says."""
        known = self.reports[broker.id]
        if isinstance(known, BrokerLoadReport):
            return known.data.msg_rate_in
        return sum(one.msg_rate_in for one in known.data.last_stats.values())

    def carry_out(self, cycle: Cycle) -> dict[str, str]:
        """Has a real executor make the moves; how each ended, by bundle."""
        known = len(self.house.ends())
        orders.commit(self.house.lake, [self._row(cycle, number) for number in range(len(cycle.decided))])
        told = len(self.house.published.events)
        with self.house.running():
            wait_until(lambda: len(self.house.ends()) == known + len(cycle.decided), PATIENCE_S)
            # An executor that starts announces earlier outcomes again: those of this cycle count.
            decided = {one.decision_id for one in cycle.decided}
            wait_until(lambda: decided <= {one.decision_id for one in self.house.published.events[told:]}, PATIENCE_S)
        for event in {one.decision_id: one for one in self.house.published.events[told:]}.values():
            if event.decision_id in decided:
                self.state.close_decision(event)
        status = {end["decision_id"]: end["status"] for end in self.house.ends()}
        return {one.decision.bundle: status[one.decision_id] for one in cycle.decided}

    def _row(self, cycle: Cycle, number: int) -> DecisionRow:
        columns = decision_row(self.state, cycle, cycle.decided[number], "")
        at = datetime.fromtimestamp(columns.pop("decided_at") / 1000, timezone.utc)
        return bundle_orders.of_columns(columns | {"decided_at": at, "day": at.date()})

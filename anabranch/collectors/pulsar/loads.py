"""The brokers' loads: what was read goes to Kafka as samples, and says which topics to look at.

Stage: under `collector`, which asks when `Refresh.due_at` has come. A broker that does not answer makes its segments
unknown, never idle: nothing is said of them.
"""

from collections.abc import Callable
from random import Random

from anabranch.admin.answers import Answered, Lost, NotConnected
from anabranch.collectors.announced import AnnouncedState
from anabranch.collectors.announcements import KafkaRecord, load_records
from anabranch.collectors.pulsar.attached import AttachedConsumers
from anabranch.collectors.pulsar.broker_stats import BrokerLoad
from anabranch.collectors.pulsar.brokers import Brokers, FollowedBroker
from anabranch.collectors.pulsar.calls import CallAnswer
from anabranch.collectors.pulsar.delivery import DeliveryReports
from anabranch.collectors.status import Troubles


class BrokerLoads:
    """Processing of the answers of `brokers`; samples go to `report`."""

    def __init__(
        self,
        brokers: Brokers,
        announced: AnnouncedState,
        report: Callable[[KafkaRecord], None],
        troubles: Troubles,
        random: Random,
        attached: AttachedConsumers | None,
        delivery: DeliveryReports,
    ) -> None:
        """`attached` counts consumers by loads; None: they are asked for. `delivery` reports what is slow."""
        self._brokers, self._announced, self._report, self._troubles = brokers, announced, report, troubles
        self._random, self._attached, self._delivery = random, attached, delivery
        self.samples = 0
        """Handed over so far."""

    def take(self, answer: CallAnswer) -> None:
        """A broker's load, or why there is none."""
        broker, reply = self._brokers.known.get(answer.call.key), answer.reply
        if broker is None:
            return
        broker.read_at = answer.asked_at
        if not isinstance(reply, Answered):
            broker.load = None
            broker.refresh.forget()
            broker.refresh.read_at = answer.answered_at
            if not isinstance(reply, NotConnected | Lost):
                broker.failed(str(reply), answer.answered_at, self._random)
            self._troubles.note(("rates", broker.name), None)
            self._troubles.note(("load", broker.name), f"the load of broker {broker.name} is not known: {reply}")
            return
        broker.answered()
        broker.trouble = None
        self._troubles.note(("load", broker.name), None)
        load: BrokerLoad = reply.value
        previous, broker.load = broker.load, load
        broker.read_seconds = answer.answered_at - answer.asked_at
        is_new = broker.refresh.note(load.digest, answer.asked_at, answer.answered_at, load.size)
        if self._attached is not None:
            self._attached.take_load(broker.name, answer.answered_at, answer.asked_ms)
        self._delivery.take_load(load.segments, answer.answered_at, answer.asked_ms)
        self._delivery.ask_about(broker.name, is_new)
        self._troubles.note(("rates", broker.name), _stuck_reason(broker, answer.asked_at))
        was_sent_lately = answer.asked_at - broker.sent_at < broker.refresh.period
        if not is_new and (was_sent_lately or broker.is_stuck(answer.asked_at)):
            return
        broker.sent_at = answer.asked_at
        for record in load_records(broker.name, answer.asked_ms, load.loads):
            self._report(record)
        self.samples += len(load.loads)
        self._follow_hints(load, previous, answer.answered_at)

    def _follow_hints(self, load: BrokerLoad, previous: BrokerLoad | None, now: float) -> None:
        """A load that shows other consumers than the last one, or segments that are new, says where to look."""
        before = previous.attached if previous else {}
        for topic in load.used:
            if sweep := self._brokers.sweep_of(topic):
                sweep.is_used(topic, now)
        for topic, mark in load.attached.items():
            if before.get(topic, mark) != mark and (sweep := self._brokers.sweep_of(topic)):
                sweep.heat(topic, now)
        topics = self._announced.topics
        for topic, segment, *_ in load.loads:
            if topic in topics and segment >= topics[topic].layout.next_segment_id:
                self._brokers.look_at_layout(topic)


def _stuck_reason(broker: FollowedBroker, now: float) -> str | None:
    if not broker.is_stuck(now):
        return None
    return (
        f"broker {broker.name} has answered the same rates for {broker.unchanged_seconds(now):.0f} s, with traffic in "
        f"them, and computes them every {broker.refresh.period:g} s: they are sent no more until they change"
    )

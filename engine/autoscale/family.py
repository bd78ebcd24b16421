"""The family `autoscale` as the kernel drives it, over the family's stages and `evaluation`.

Stage: between the kernel's protocol (`engine.kernel.family`) and the stages of a sample. The counterpart for brokers is
`engine.bundles.family`.
"""

from collections.abc import Callable, Mapping, Set

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decisions.autoscale.columns import Bools
from engine.autoscale.evaluation import FAMILY, Evaluation
from engine.autoscale.filtering import (
    Codes,
    decision_of,
    news_of_consumers,
    news_of_deletion,
    news_of_layout,
    news_of_policy,
    refuse_consumers,
    refuse_policy,
)
from engine.autoscale.fleet_view import FleetView
from engine.autoscale.loads import LoadTable, Origins, reporter_code
from engine.autoscale.loads_codec import LoadsPart, unpack_loads
from engine.autoscale.parsing import READINGS, NewLayout, Taken, TopicDeleted
from engine.autoscale.partitioning import SampleColumns
from engine.autoscale.policies import Policies
from engine.autoscale.recording import count_samples, load_records
from engine.autoscale.repeats import are_known_consumers, count_unknown, is_known_layout
from engine.autoscale.routes import Routes
from engine.autoscale.samples import Samples
from engine.autoscale.storing import (
    store_consumers,
    store_deletion,
    store_layout,
    store_outcome,
    store_policy,
    store_samples,
)
from engine.autoscale.topics import BucketState
from engine.autoscale.topics_codec import TopicsPart, unpack_topics
from engine.kernel.packed import Part, StoredPart
from engine.kernel.records import LAYOUT_SCHEMA, LAYOUTS, LOAD, Output
from engine.kernel.settings import EngineSettings
from schemas.codecs.plain_events import PlainConsumerEvent, PlainEvent, PlainLayoutEvent
from schemas.kafka.messages import ConsumerEvent, LayoutsKnown, PolicyEvent, Rejected, RejectReason
from schemas.kafka.topics import CONSUMER_EVENTS
from schemas.metadata import RATES

TOPICS, LOADS = "topics", "loads"


class Autoscale:
    """Splits and merges of the segments of scalable topics (PIP-483)."""

    name = FAMILY
    sources = (CONSUMER_EVENTS.name,)
    parts = (TOPICS, LOADS)
    readings = READINGS
    columns = SampleColumns()

    def opener(self, settings: EngineSettings) -> "Callable[[Mapping[str, StoredPart]], AutoscaleState]":
        """Return a function that opens buckets, which share resolved policies."""
        policies = Policies()

        def open_bucket(parts: Mapping[str, StoredPart]) -> AutoscaleState:
            state = unpack_topics(parts.get(TOPICS, StoredPart()))
            return AutoscaleState(settings, policies, state, unpack_loads(parts.get(LOADS, StoredPart())))

        return open_bucket


class AutoscaleState:
    """State of the topics of one bucket, with the views derived from it."""

    def __init__(self, settings: EngineSettings, policies: Policies, state: BucketState, loads: LoadTable) -> None:
        self.settings, self.policies, self.topics, self.loads = settings, policies, state, loads
        self.parts: dict[str, Part] = {TOPICS: TopicsPart(state), LOADS: LoadsPart(loads)}
        self.routes = Routes(state, loads, policies)
        self.view = FleetView(state, loads, policies)
        self.view.lay_out()

    def set_back(self, now: int) -> None:
        """Clamp all clocks to `now` at each tick, in case the job's own clock was set back."""
        self.loads.set_back(now)
        self.topics.set_back(self.view.names_ahead(now), now)

    def tell(self, output: Output) -> None:
        """Emit the known layouts."""
        layouts = {topic.name: layout for topic in self.topics.topics.values() if (layout := topic.known) is not None}
        columns = ([*layouts], [layout.active_count for layout in layouts.values()])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LAYOUT_SCHEMA, strict=True)]
        output.add_columns(LAYOUTS, pa.RecordBatch.from_arrays(arrays, schema=LAYOUT_SCHEMA))

    def evaluation(self, now: int, output: Output) -> Evaluation:
        """Return the evaluations of a batch."""
        return Evaluation(self.topics, self.loads, self.policies, self.view, self.settings.tick_ms, now, output)

    def begin(self, now: int, output: Output) -> "AutoscaleBatch":
        """Begin a batch at `now`, milliseconds."""
        return AutoscaleBatch(self, now, output)


class AutoscaleBatch:
    """One batch of one bucket, and the topics that are due at its end."""

    def __init__(self, state: AutoscaleState, now: int, output: Output) -> None:
        self._of, self._state, self._loads = state, state.topics, state.loads
        self._now, self._output = now, output
        self._has_made_room = False
        """True once expired topics without a layout have been dropped in this batch."""
        self._due_by_consumer: set[str] = set()
        """Topics whose consumers, layout or open decision changed."""
        self._due_by_tick: set[str] = set()
        """Topics whose own tick has arrived."""

    @property
    def due(self) -> tuple[Set[str], Set[str]]:
        """Topics due without a tick for all: by a tick of their own, and by an event."""
        return self._due_by_tick, self._due_by_consumer

    def is_known(self, plain: PlainEvent) -> bool:
        """Return whether a snapshot repeats the known state."""
        if isinstance(plain, PlainLayoutEvent):
            return is_known_layout(self._state, plain)
        return are_known_consumers(self._state, plain)

    def refuse(self, message: Taken) -> Rejected | None:
        """Return the reason for which a parsed message is not accepted, or None."""
        if isinstance(message, PolicyEvent):
            return refuse_policy(self._state, message)
        if not isinstance(message, ConsumerEvent | PlainConsumerEvent):
            return None
        refused = refuse_consumers(self._state, message, self._now)
        if refused is not None and refused.reason is RejectReason.UNKNOWN_TOPIC and not self._has_made_room:
            self._has_made_room = True
            self._state.forget_waiting(self._now)
            refused = refuse_consumers(self._state, message, self._now)
        return refused

    def is_news(self, message: Taken) -> bool:
        """Return True: stale messages are recorded too, and recognized when they are stored."""
        return True

    def take(self, message: Taken) -> None:
        """Filter and store a parsed message."""
        state, loads, policies, now = self._state, self._loads, self._of.policies, self._now
        if isinstance(message, NewLayout):
            topic = message.event.topic
            is_due = store_layout(state, loads, policies, message, news_of_layout(state, message, now), now)
            if is_due:
                self._output.add_row(LAYOUTS, (topic, len(message.read.active)), len(topic))
        elif isinstance(message, LayoutsKnown):
            topic, is_due = "", False
            self._output.counts.layouts_unknown += count_unknown(state, message, now)
        elif isinstance(message, TopicDeleted):
            topic = message.event.topic
            is_due = store_deletion(state, loads, message, news_of_deletion(state, message, now), now)
            if topic not in state.topics:
                self._output.add_row(LAYOUTS, (topic, None), len(topic))
        elif isinstance(message, ConsumerEvent | PlainConsumerEvent):
            topic = message.topic
            is_due = store_consumers(state, loads, message, news_of_consumers(state, message, now), now)
        elif isinstance(message, PolicyEvent):
            topic = ""
            is_due = store_policy(state, loads, policies, message, news_of_policy(state, message), now)
        else:
            topic = message.topic
            is_due = store_outcome(state, message, decision_of(state, message), now)
        if is_due:
            self._due_by_consumer.add(topic)

    def wake(self, subject: str) -> None:
        """Mark a topic whose own tick has arrived as due."""
        if subject in self._state.topics:
            self._due_by_tick.add(subject)

    def take_samples(self, samples: Samples) -> None:
        """Filter, store, count and record samples."""
        indexes, rows, since, crossing, merge = self._of.routes.of(samples, self._now)
        by_reporter = np.fromiter(map(reporter_code, samples.reporters.to_pylist()), np.int64, len(samples.reporters))
        messages = samples.message if indexes is None else samples.message[indexes]
        origins = Origins.judged(samples.sampled_at, samples.timestamp, by_reporter[samples.reporter], self._now)
        rates = samples.rates if indexes is None else samples.rates[indexes]
        is_hot: Bools = np.asarray((rates > crossing[:, : len(RATES)]).any(axis=1), np.bool_)
        codes = store_samples(
            self._loads,
            rows,
            rates,
            origins.of(messages),
            since,
            self._now,
            self._of.settings.change_threshold,
            crossing,
            merge,
        )
        count_samples(self._output.counts, samples, messages, codes)
        self._evaluate_hot(samples.topics, samples.topic if indexes is None else samples.topic[indexes], codes, is_hot)
        if (loads := load_records(samples, messages, indexes, codes)) is not None:
            self._output.add_columns(LOAD, loads)

    def _evaluate_hot(self, names: pa.Array, topic: npt.NDArray[np.int32], codes: Codes, is_hot: Bools) -> None:
        """Mark topics with significant samples above a split threshold as due (guard `promptSplits`)."""
        for index in np.unique(topic[is_hot & (codes > 0)]).tolist():
            state = self._state.topics.get(names[index].as_py())
            if state is not None and self._of.policies.of(self._state, state).policy.evaluates_at_once:
                self._due_by_tick.add(state.name)

    def evaluate(self, is_tick: bool) -> None:
        """Evaluate what is due, or every topic at a tick."""
        if is_tick:
            self._of.set_back(self._now)
        self._of.evaluation(self._now, self._output).run(is_tick, self._due_by_tick, self._due_by_consumer)
        self._of.view.keep_up()


AUTOSCALE = Autoscale()

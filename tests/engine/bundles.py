"""A toy family, `bundles`: it moves a hot bundle off its broker. Nothing of it is in the product.

It shows what a family has to provide: messages of a Kafka topic of its own, a stored part, an evaluation, rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import pyarrow as pa
import pydantic_core

from engine.kernel.packed import StateError, StoredPart
from engine.kernel.records import HOLD_SCHEMA, HOLDS
from schemas.base import Millis, Name, Rate, Wire
from schemas.ids import canonical_json, digest
from schemas.kafka.messages import OutcomeEvent, Rejected, RejectReason, register_messages
from schemas.snapshot import ENGINE_VERSION

SOURCE, PART = "bundle-events", "bundles"
LIMIT = 100.0
TARGET = "broker-2"


class BundleReport(Wire):
    """Kafka topic `bundle-events`: the load of a bundle, and whose it is."""

    v: Literal[1]
    type: Literal["report"]
    subject: Name
    broker: Name
    rate: Rate
    at: Millis


register_messages(SOURCE, BundleReport)


@dataclass
class Bundle:
    """What is known of a bundle."""

    broker: str
    rate: float
    open_decision: str | None = None
    gate: str | None = None
    decisions: int = 0
    holds: int = 0


class BundlesState:
    """All bundles of a bucket; the stored part and the family's state in one."""

    def __init__(self, part: StoredPart):
        self.bundles, self.changed = {}, set()
        for entry in ([part.base] if part.base else []) + list(part.log):
            try:
                found = pydantic_core.from_json(entry)
            except ValueError as error:
                raise StateError(f"no bundles: {error}") from error
            self.bundles |= {name: Bundle(**fields) for name, fields in found.items()}
        self.parts = {PART: self}

    @property
    def is_changed(self):
        return bool(self.changed)

    def pack(self):
        return self._packed(self.bundles)

    def pack_changes(self):
        return self._packed(sorted(self.changed))

    def _packed(self, names):
        self.changed = set()
        return pydantic_core.to_json({name: asdict(self.bundles[name]) for name in names})

    def tell(self, output):
        """Nobody watches bundles."""

    def begin(self, now, output):
        return BundlesBatch(self, now, output)


class BundlesBatch:
    """One batch of it."""

    def __init__(self, state, now, output):
        self.state, self.now, self.output, self.due = state, now, output, set()

    def refuse(self, taken):
        if isinstance(taken, OutcomeEvent) and taken.topic not in self.state.bundles:
            return Rejected(RejectReason.UNKNOWN_TOPIC, f"no report of {taken.topic} has come")
        return None

    def is_news(self, taken):
        return True

    def take(self, taken):
        subject = taken.subject if isinstance(taken, BundleReport) else taken.topic
        known = self.state.bundles.get(subject)
        self.state.changed.add(subject)
        if isinstance(taken, BundleReport):
            if known is None:
                self.state.bundles[taken.subject] = Bundle(taken.broker, taken.rate)
            else:
                known.broker, known.rate = taken.broker, taken.rate
        elif known.open_decision == taken.decision_id:
            known.open_decision = None
            self.due.add(subject)

    def wake(self, subject):
        self.due.add(subject)

    def take_samples(self, samples):
        raise AssertionError("the family has no samples in columns")

    def evaluate(self, is_tick):
        for name in sorted(self.state.bundles if is_tick else self.due & self.state.bundles.keys()):
            bundle = self.state.bundles[name]
            self.output.counts.evaluations += 1
            gate = "in-flight" if bundle.open_decision else "load" if bundle.rate <= LIMIT else None
            if gate is None:
                self._decide(name, bundle)
            elif gate != bundle.gate:
                self._hold(name, bundle, gate)

    def _decide(self, name, bundle):
        self.state.changed.add(name)
        bundle.decisions += 1
        bundle.gate, bundle.open_decision = None, digest([name, "move", bundle.decisions])
        self.output.counts.decisions += 1
        self.output.add(
            "decisions",
            {
                **self._identity(name, bundle),
                "decision_id": bundle.open_decision,
                "action": "move",
                "arguments": canonical_json({"from": bundle.broker, "to": TARGET}),
                "reason": "rate",
                "decided_at": self.now,
                "gates": "[]",
                "seq": bundle.decisions,
            },
        )

    def _hold(self, name, bundle, gate):
        self.state.changed.add(name)
        bundle.gate = gate
        bundle.holds += 1
        self.output.counts.holds += 1
        row = {
            **self._identity(name, bundle),
            "gate": gate,
            "measured": bundle.rate,
            "limit": LIMIT,
            "margin": bundle.rate - LIMIT,
            "eligible_at": None,
            "since": self.now,
            "seq": bundle.holds,
        }
        self.output.add_columns(HOLDS, pa.RecordBatch.from_pylist([row], HOLD_SCHEMA))

    def _identity(self, name, bundle):
        return {
            "family": BUNDLES.name,
            "subject": name,
            "trigger": "tick",
            "layout_epoch": None,
            "policy_digest": "",
            "inputs": canonical_json({"broker": bundle.broker, "rate": bundle.rate}),
            "engine_version": ENGINE_VERSION,
        }


class Bundles:
    """The toy family."""

    name = "bundles"
    sources = (SOURCE,)
    parts = (PART,)
    readings = {model: lambda message, now: message for model in (BundleReport, OutcomeEvent)}  # noqa: RUF012
    columns = None

    def opener(self, settings):
        return lambda parts: BundlesState(parts.get(PART, StoredPart()))


BUNDLES = Bundles()

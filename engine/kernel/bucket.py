"""The bucket engine: state, raw records and a time in; new state and output out. Pure, no Spark.

Stage: the whole of the stateful operator (design "The flow"); `streaming.operator.bucket_task` adapts it to Spark.

Theory of operation. A bucket's topics share one stored state, split into parts (`engine.kernel.packed`): a base and
a log of changes, so a batch stores only what it changed. `begin` opens the state, `take` ingests records part by
part in arrival order, and `end` evaluates what is due and returns the bytes to store. Decoded state stays in memory
between batches, keyed by the fingerprint of its bytes: if Spark retries or replays a batch, its store holds other
bytes, the fingerprints differ, and the state is decoded again. During a batch the decoded state is out of the cache,
so a batch that fails halfway leaves nothing stale. All results depend on the arguments alone.

Invariants. Arrival order decides ties, never the order in which Spark delivers rows: records are sorted before they are
ingested. Every record ends as exactly one of accepted, suppressed and dead letter, and is counted at one bucket, its
home, though copies of it reach others. Nothing is evaluated before all parts of the batch are in.

Why not one state per topic, as Spark suggests: many topics of a fleet change a little in every batch, and each key
costs a call through Python. One value per bucket costs one call; the log of changes keeps its writes small as well,
and all due topics of a bucket are evaluated at once, in columns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.kernel.family import Family, FamilyBatch, FamilyState, part_names
from engine.kernel.packed import (
    Chain,
    Packed,
    StateError,
    StoredPart,
    Written,
    WrittenPart,
    fingerprint_of,
    fingerprint_v1,
)
from engine.kernel.parsing import AcceptedMessage, parse_by_models, parse_plain, read_plain_record, readers_of
from engine.kernel.recording import record_dead_letter, record_event
from engine.kernel.records import Output, RawRecord, arrival_key
from engine.kernel.settings import EngineSettings
from schemas.kafka.messages import LayoutsKnown, Rejected, TickEvent
from schemas.kafka.topics import SEGMENT_STATS


@dataclass
class _Decoded:
    fingerprint: bytes | None
    states: list[FamilyState]
    chains: dict[str, Chain]
    """By stored part, in order."""
    is_old: bool
    """True if an older version stored it, so that the next batch rewrites everything."""


class BucketEngine:
    """Engine of a worker, which runs its buckets one batch at a time."""

    def __init__(self, settings: EngineSettings, families: Sequence[Family]) -> None:
        """Create an engine; the order of `families` must never change, because stored parts follow it."""
        self.intake = Intake(families)
        self._parts = part_names(families)
        self._open = [family.opener(settings) for family in families]
        self._decoded: dict[int, _Decoded] = {}

    def has_decoded(self, bucket: int, fingerprint: bytes | None) -> bool:
        """Return whether decoded state of this fingerprint is in memory; `run` then needs no stored parts."""
        decoded = self._decoded.get(bucket)
        return decoded is not None and fingerprint is not None and decoded.fingerprint == fingerprint

    def run(
        self,
        bucket: int,
        packed: Packed,
        records: Sequence[RawRecord],
        now: int,
        samples: Mapping[str, Any] | None = None,
        letters: Sequence[dict[str, Any]] = (),
        letters_of_parts: Sequence[dict[str, Any]] = (),
    ) -> tuple[Written, Output]:
        """Run one batch of one bucket; return the state to store, and the output.

        `samples` are columnar samples by kind, `letters` the messages refused before the shuffle, and
        `letters_of_parts` the refused parts of accepted messages; `now` is the batch's time in milliseconds. Equal
        arguments give equal results. Raises `StateError` when the stored state cannot be read, and nothing else,
        whatever the data.
        """
        # The same path as a batch in parts, so that both are one piece of code and give the same bytes.
        batch = self.begin(bucket, packed, now)
        batch.take(records, samples, letters, letters_of_parts)
        return batch.end(), batch.output

    def begin(
        self, bucket: int, packed: Packed, now: int, give: Callable[[dict[str, bytes]], None] | None = None
    ) -> "BucketBatch":
        """Begin a batch that is ingested part by part, in arrival order, and emits output in chunks.

        Chunks go to `give` (`Output.give`). Raises as `run` does.
        """
        is_decoded, output = self.has_decoded(bucket, packed.fingerprint), Output(give)
        decoded = self._take(bucket, packed)
        for state in () if is_decoded else decoded.states:
            state.tell(output)
        return BucketBatch(self, bucket, decoded, now, output)

    def keep(self, bucket: int, decoded: _Decoded) -> None:
        """Cache the decoded state for the next batch."""
        self._decoded[bucket] = decoded

    def _take(self, bucket: int, packed: Packed) -> _Decoded:
        """Remove and return the decoded state, so that a failing batch leaves nothing stale."""
        is_decoded = self.has_decoded(bucket, packed.fingerprint)
        decoded = self._decoded.pop(bucket, None)
        if is_decoded and decoded is not None:
            return decoded
        chains = {name: Chain.of(packed.parts.get(name, StoredPart())) for name in self._parts}
        is_old = _check_fingerprint(bucket, packed, list(chains.values()))
        return _Decoded(packed.fingerprint, [open_bucket(packed.parts) for open_bucket in self._open], chains, is_old)


class BucketBatch:
    """One batch of one bucket, part by part."""

    def __init__(self, engine: BucketEngine, bucket: int, decoded: _Decoded, now: int, output: Output) -> None:
        self._engine, self._bucket, self._decoded, self._now, self.output = engine, bucket, decoded, now, output
        self._batches = [state.begin(now, output) for state in decoded.states]
        self._is_tick = False

    def take(
        self,
        records: Sequence[RawRecord],
        samples: Mapping[str, Any] | None = None,
        letters: Sequence[dict[str, Any]] = (),
        letters_of_parts: Sequence[dict[str, Any]] = (),
    ) -> None:
        """Ingest a part; its records arrived after those of earlier parts."""
        # Parts of messages are left out here: their messages are counted among the records or columns.
        self.output.counts.messages += len(letters)
        self.output.counts.dead_letters += len(letters)
        self.output.counts.samples_refused += sum(
            refused["kafka_topic"] == SEGMENT_STATS.name for refused in letters_of_parts
        )
        for letter in (*letters, *letters_of_parts):
            self.output.add("dead_letters", letter)
        self._is_tick |= self._engine.intake.take(self._batches, records, samples or {}, self._now, self.output)

    def end(self) -> Written:
        """Evaluate what is due and return the state to store."""
        for batch in self._batches:
            batch.evaluate(self._is_tick)
        written = _write_changes(self._decoded, self._bucket)
        self._engine.keep(self._bucket, self._decoded)
        return written


class Intake:
    """Path of a batch's records into the families: parse, filter and store, count, record."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._readers = readers_of(families)
        self._columns = [(index, family.columns.kind) for index, family in enumerate(families) if family.columns]

    def take(
        self,
        batches: Sequence[FamilyBatch],
        records: Sequence[RawRecord],
        samples: Mapping[str, Any],
        now: int,
        output: Output,
    ) -> bool:
        """Ingest records in arrival order, then columnar samples. Never raises on record content.

        Every record ends as exactly one of: accepted, suppressed, dead letter. An accepted one is an event, unless
        it only repeats the known state. Returns whether there was a tick for every subject.
        """
        is_tick = False
        for record in sorted(records, key=arrival_key):
            output.counts.messages += record.home
            parsed: AcceptedMessage | Rejected | None = None
            # Most announcements repeat what is known. They are recognized from their text, before the models parse
            # them, which costs far more.
            if (plain := parse_plain(record, self._readers)) is not None:
                if all(batches[index].is_known(plain) for index, *_ in self._readers[type(plain)]):
                    output.counts.messages_accepted += record.home
                    continue
                parsed = read_plain_record(plain, record, self._readers, now)
            parsed = parsed or parse_by_models(record, self._readers, now)
            if isinstance(parsed, AcceptedMessage):
                parsed = _first_refusal(batches, parsed) or parsed
            if isinstance(parsed, Rejected):
                if record.home:
                    record_dead_letter(output, record, parsed, now)
                continue
            # A message of no family is recorded nevertheless: `taken` is empty, and nothing suppresses it.
            if parsed.taken and not any(batches[index].is_news(message) for index, message in parsed.taken):
                output.counts.messages_suppressed += record.home
                continue
            is_tick |= _take_in(batches, parsed)
            if record.home and isinstance(parsed.message, LayoutsKnown):
                output.counts.messages_accepted += 1
            elif record.home:
                record_event(output, record, parsed.message, now)
        # Samples come last: a layout that arrived in the same part decides which segments they may be about.
        for index, kind in self._columns:
            if (of_family := samples.get(kind)) is not None:
                batches[index].take_samples(of_family)
        return is_tick


def _first_refusal(batches: Sequence[FamilyBatch], accepted: AcceptedMessage) -> Rejected | None:
    """Return the first family's refusal of a message, or None."""
    for index, message in accepted.taken:
        if (rejected := batches[index].refuse(message)) is not None:
            return rejected
    return None


def _take_in(batches: Sequence[FamilyBatch], accepted: AcceptedMessage) -> bool:
    """Pass a message to its families; return whether it is a tick for every subject."""
    if isinstance(accepted.message, TickEvent):
        subject = accepted.message.topic
        for batch in batches if subject is not None else ():
            batch.wake(str(subject))
        return subject is None
    for index, message in accepted.taken:
        batches[index].take(message)
    return False


def _check_fingerprint(bucket: int, packed: Packed, chains: Sequence[Chain]) -> bool:
    """Verify the fingerprint and return whether it is of the first version.

    Raises `StateError` on a mismatch. A fingerprint may cover fewer parts than there are: families added since have
    none stored.
    """
    if (stored := packed.fingerprint) is None:
        return False
    for is_old, expected in ((False, fingerprint_of(chains)), (True, fingerprint_v1(chains))):
        covered = len(stored) * len(chains) // len(expected)
        if stored and expected.startswith(stored) and all(chain.is_empty for chain in chains[covered:]):
            return is_old
    raise StateError(f"the stored state of bucket {bucket} is not what was stored: its fingerprint differs")


def _write_changes(decoded: _Decoded, bucket: int) -> Written:
    """Return changes as log entries, or new bases for logs that have outgrown theirs."""
    written: dict[str, WrittenPart] = {}
    for state in decoded.states:
        for name, part in state.parts.items():
            if not (part.is_changed or decoded.is_old):
                continue
            if decoded.is_old or decoded.chains[name].is_outgrown(bucket):
                written[name] = WrittenPart(base=(base := part.pack()))
                decoded.chains[name] = Chain.of(StoredPart(base))
            else:
                written[name] = WrittenPart(entry=(entry := part.pack_changes()))
                decoded.chains[name].add(entry)
    decoded.is_old = False
    decoded.fingerprint = fingerprint_of(list(decoded.chains.values()))
    return Written(decoded.fingerprint, written)

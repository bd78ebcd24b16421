"""Clients beside confluent-kafka on a plain topic with as many partitions, and what a seal costs the producer.

Run as `python -m benchmarks.clients [--quick]`: a broker, a controller and one client at a time, on this machine.
Rounds of the two clients alternate; a ratio is the median of the rounds' ratios. Producers are idempotent with the same
settings and call a function for every message; consumers read the same messages in batches and look at keys and values,
so many that it does not count how long four groups take to assign a segment each. `cpu_us`: processor time a message.
Then messages are produced at a steady rate while segments split: the delay by a seal is the time from `produce` to the
report, of keys of the sealed segment and of all others. Prints the figures and writes benchmarks/clients.json.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from anabranch.local.broker import EmbeddedBroker
from anabranch.local.setup import ensure_jars
from anabranch_client.layout import key_hash
from anabranch_client.producer import Producer
from anabranch_client.stream_consumer import StreamConsumer
from benchmarks.record import machine_now, publish, quick_command, recorded_report
from schemas.settings.root import load_settings
from tests.client.scalable_topic import ScalableTopic
from tests.controller.processes import ControllerProcess

SEGMENTS, KEYS, VALUE = 4, [f"key-{number}" for number in range(2_000)], b"v" * 100
HASHES = {key: key_hash(key.encode()) for key in KEYS}
FAIR = {"linger.ms": 5, "queue.buffering.max.messages": 100_000}
SEAL_RATE, SEALS = 2_000, 8
SUBSCRIPTION, PLAIN = "reader", "plain"


@quick_command
def main(quick: bool) -> None:
    """Measures, prints, writes."""
    report: dict[str, Any] = {"machine": machine_now()}
    messages, rounds = (50_000, 3) if quick else (300_000, 7)
    read = messages * rounds
    with _topic() as topic:
        report["producer"] = _ratio(
            rounds, lambda: _rate_of_producer(topic, messages), lambda: _rate_of_plain_producer(topic, messages)
        )
        report["consumer"] = _ratio(
            min(rounds, 5), lambda: _rate_of_consumer(topic, read), lambda: _rate_of_plain_consumer(topic, read)
        )
        report["seal"] = _delays_by_seals(topic, 2 if quick else SEALS)
        report["memory"] = _memory_of_full_producer(topic)
    # The half hour of `python -m tests.client.proof` is put on record by hand.
    publish("clients", {**report, "proof": recorded_report("clients").get("proof", {})}, quick)


@contextmanager
def _topic() -> Iterator[ScalableTopic]:
    """A scalable topic, and beside it the plain topic `PLAIN`."""
    jars = ensure_jars(load_settings(environment={}), print)
    with tempfile.TemporaryDirectory() as folder:
        broker = EmbeddedBroker(Path(folder) / "kafka", jars.kafka, heap="1g")
        broker.start()
        try:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            admin.create_topics([NewTopic(PLAIN, SEGMENTS, 1)])[PLAIN].result(60)
            with ControllerProcess(Path(folder), "kafka", broker.bootstrap).life() as (client, _):
                topic = ScalableTopic("topic://acme/bench/orders", client, broker.bootstrap)
                topic.create(SEGMENTS)
                client.put(f"{topic.path}/subscriptions/{SUBSCRIPTION}").raise_for_status()
                yield topic
        finally:
            broker.kill()


Measured = tuple[float, float]
"""Messages a second, and seconds of the processor for each."""


def _ratio(rounds: int, ours: Callable[[], Measured], plain: Callable[[], Measured]) -> dict[str, float]:
    """Messages a second of both, in turns, and the ratio."""
    pairs = []
    for number in range(rounds + 1):
        # Who begins changes, and the first round warms the broker up.
        pair = (ours(), plain()) if number % 2 else tuple(reversed((plain(), ours())))
        pairs += [pair] if number else []
    ratios = [ours[0] / plain[0] for ours, plain in pairs]
    return {
        "anabranch": round(statistics.median(ours[0] for ours, _ in pairs)),
        "confluent_kafka": round(statistics.median(plain[0] for _, plain in pairs)),
        "ratio": round(statistics.median(ratios), 2),
        "lowest_ratio": round(min(ratios), 2),
        "cpu_us": round(1e6 * statistics.median(ours[1] for ours, _ in pairs), 2),
        "confluent_kafka_cpu_us": round(1e6 * statistics.median(plain[1] for _, plain in pairs), 2),
    }


def _rate_of_producer(topic: ScalableTopic, messages: int) -> Measured:
    with Producer(topic.config() | FAIR, topic.name) as producer:
        return _rate_of(messages, producer.poll, producer.flush, producer.produce)


def _rate_of_plain_producer(topic: ScalableTopic, messages: int) -> Measured:
    config = {"bootstrap.servers": topic.bootstrap, "enable.idempotence": True, "acks": "all", **FAIR}
    producer = confluent_kafka.Producer(config)

    def produce(value: bytes, key: str, on_delivery: Any) -> None:
        producer.produce(PLAIN, value, key, on_delivery=on_delivery)

    return _rate_of(messages, producer.poll, producer.flush, produce)


def _rate_of(messages: int, poll: Callable[[float], int], flush: Callable[[], int], produce: Any) -> Measured:
    """Speed of a producer, from the first call to the last report."""
    ends = [0, 0]

    def count(error: object, _: object) -> None:
        ends[error is not None] += 1

    began, busy = time.perf_counter(), time.process_time()
    for number in range(messages):
        while True:
            try:
                produce(VALUE, KEYS[number % len(KEYS)], on_delivery=count)
                break
            except BufferError:
                poll(0.01)
        if number % 500 == 0:
            poll(0)
    flush()
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    if ends != [messages, 0]:
        raise SystemExit(f"of {messages} messages, {ends[0]} were stored and {ends[1]} failed")
    return messages / seconds, busy / messages


def _rate_of_consumer(topic: ScalableTopic, messages: int) -> Measured:
    """Each round reads everything that there is, from a subscription of its own."""
    subscription = f"{SUBSCRIPTION}-{time.monotonic_ns()}"
    topic.admin.put(f"{topic.path}/subscriptions/{subscription}", params={"startMessageId": "earliest"})
    with StreamConsumer(topic.config(), topic.name, subscription, "only") as consumer:
        return _rate_of_reading(messages, lambda: consumer.consume(500, 30), consumer.acknowledge)


def _rate_of_plain_consumer(topic: ScalableTopic, messages: int) -> Measured:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": topic.bootstrap,
            "group.id": f"plain-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([PLAIN])
    try:
        return _rate_of_reading(messages, lambda: consumer.consume(500, 30), lambda last: consumer.commit(last))
    finally:
        consumer.close()


def _rate_of_reading(messages: int, consume: Callable[[], list[Any]], acknowledge: Callable[[Any], Any]) -> Measured:
    """Speed of a consumer, from its first batch on."""
    batch = consume()
    began, busy, count, size = time.perf_counter(), time.process_time(), 0, 0
    while count < messages:
        batch = consume()
        for message in batch:
            size += len(message.key()) + len(message.value())
        count += len(batch)
        acknowledge(batch[-1])
    return count / (time.perf_counter() - began), (time.process_time() - busy) / count


def _delays_by_seals(topic: ScalableTopic, seals: int) -> dict[str, float]:
    """Milliseconds from `produce` to the report while segments split, of their keys and of all others."""
    calm: list[float] = []
    delays: dict[bool, list[float]] = {True: [], False: []}
    worst: dict[bool, list[float]] = {True: [], False: []}
    with Producer(topic.config() | {"linger.ms": 1}, topic.name) as producer, ThreadPoolExecutor(1) as splitting:
        for _ in range(seals):
            parent = max(topic.active(), key=_width)
            hashes = range(parent["hashRange"]["start"], parent["hashRange"]["end"] + 1)
            calm += _produce_steadily(producer, hashes, 1.0)[True]
            during = _produce_steadily(producer, hashes, 0.5, splitting.submit(topic.split, parent["segmentId"]))
            for is_affected, values in during.items():
                delays[is_affected] += values
                worst[is_affected].append(max(values))
            print(f"seal: affected {worst[True][-1]:.0f} ms, others {worst[False][-1]:.0f} ms", flush=True)
        resent = producer.resent
    return {
        "seals": seals,
        "resent": resent,
        **_spread("calm", calm),
        **_spread("affected", delays[True]),
        "affected_worst_of_a_seal_median_ms": round(statistics.median(worst[True])),
        **_spread("others", delays[False]),
        "others_worst_of_a_seal_median_ms": round(statistics.median(worst[False])),
    }


def _width(segment: dict[str, Any]) -> int:
    return int(segment["hashRange"]["end"] - segment["hashRange"]["start"])


def _spread(name: str, values: list[float]) -> dict[str, float]:
    ranks = statistics.quantiles(values, n=100)
    return {f"{name}_p50_ms": round(ranks[49], 1), f"{name}_p99_ms": round(ranks[98], 1)}


def _produce_steadily(
    producer: Producer, hashes: range, seconds: float, split: Future[None] | None = None
) -> dict[bool, list[float]]:
    """Milliseconds of each message, by whether `hashes` has its key; until `seconds` after the split."""
    delays: dict[bool, list[float]] = {True: [], False: []}
    began, number = time.perf_counter(), 0
    end = None if split else began + seconds
    while end is None or time.perf_counter() < end:
        now = time.perf_counter()
        if end is None and split is not None and split.done():
            split.result()
            end = now + seconds
        while number < (now - began) * SEAL_RATE:
            key = KEYS[number % len(KEYS)]
            number += 1
            mine = delays[HASHES[key] in hashes]
            sent = time.perf_counter()
            producer.produce(
                VALUE, key, lambda _, __, mine=mine, sent=sent: mine.append(1_000 * (time.perf_counter() - sent))
            )
        producer.poll(0.001)
    producer.flush()
    return delays


def _memory_of_full_producer(topic: ScalableTopic) -> dict[str, int]:
    """Resident memory that a producer adds until it refuses messages, of which each counts 600 bytes."""
    process = psutil.Process()
    with Producer(topic.config(linger_ms=60_000), topic.name) as producer:
        before, count = process.memory_info().rss, 0
        try:
            while True:
                producer.produce(VALUE, KEYS[count % len(KEYS)])
                count += 1
        except BufferError:
            return {"messages": count, "added_mb": (process.memory_info().rss - before) // 2**20}


if __name__ == "__main__":
    main()

"""Transactions over segments of a real broker and controller: each message once for readers of committed ones."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from anabranch.local.broker import EmbeddedBroker
from anabranch_client import CheckpointConsumer, Producer, TransactionalProducer
from anabranch_client.errors import ClientSettingsError, ProducerFenced, TransactionAborted
from tests.client.scalable_topic import ScalableTopic
from tests.controller.conftest import RunningController
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

KEYS = [f"key-{number}" for number in range(20)]
END = "end"


@pytest.fixture
def transactions(controller: RunningController, broker: EmbeddedBroker) -> ScalableTopic:
    """A topic for transactions."""
    topic = ScalableTopic(f"topic://{controller.new_namespace()}/orders", controller.client, broker.bootstrap)
    properties = {"transactions": "true"}
    topic.admin.put(topic.path, params={"numInitialSegments": 1}, json=properties).raise_for_status()
    return topic


def write(producer: TransactionalProducer, value: str) -> None:
    """Add a message of every key to the open transaction."""
    for key in KEYS:
        producer.produce(value, key)


def write_until_committed(producer: TransactionalProducer, value: str) -> int:
    """Commit a message of every key; return how many transactions were aborted before."""
    aborted = 0
    while True:
        producer.begin_transaction()
        try:
            write(producer, value)
            producer.commit_transaction(120)
        except TransactionAborted:
            aborted += 1
        else:
            return aborted


def committed(topic: ScalableTopic) -> dict[str, list[str]]:
    """Return all values by key, in the order of a reader of committed messages; each key has the value `END`."""
    values: dict[str, list[str]] = defaultdict(list)
    with CheckpointConsumer(topic.config(), topic.name) as consumer:
        while [each[-1:] for each in values.values()].count([END]) < len(KEYS):
            for message in consumer.consume(1_000, 120):
                values[(message.key() or b"").decode()].append((message.value() or b"").decode())
    return values


def test_seal_aborts_a_transaction_that_is_repeated(transactions: ScalableTopic) -> None:
    with (
        TransactionalProducer(transactions.config(), transactions.name, "orders-1") as producer,
        ThreadPoolExecutor(1) as splitting,
    ):
        assert write_until_committed(producer, "0") == 0
        producer.begin_transaction()
        write(producer, "1")
        split = splitting.submit(transactions.split, 0)

        def is_aborted() -> bool:
            try:
                write(producer, "1")
                producer.poll(0.05)
            except TransactionAborted:
                return True
            return False

        wait_until(is_aborted, 120)
        write_until_committed(producer, "1")
        split.result()
        assert write_until_committed(producer, END) == 0
    assert committed(transactions) == {key: ["0", "1", END] for key in KEYS}


def test_transactions_go_on_over_splits_and_merges(transactions: ScalableTopic) -> None:
    over, written = threading.Event(), 0
    with (
        TransactionalProducer(transactions.config(), transactions.name, "orders-1") as producer,
        ThreadPoolExecutor(1) as changing,
    ):

        def change() -> None:
            try:
                transactions.split(0)
                transactions.split(1)
                transactions.merge(4, 2)
            finally:
                over.set()

        changed = changing.submit(change)
        while not over.is_set():
            write_until_committed(producer, str(written))
            written += 1
        changed.result()
        write_until_committed(producer, END)
    assert written > 3
    assert committed(transactions) == {key: [*map(str, range(written)), END] for key in KEYS}


def test_successor_of_an_id_drops_what_was_open(transactions: ScalableTopic) -> None:
    config, name = transactions.config(), transactions.name
    with TransactionalProducer(config, name, "orders-1") as killed:
        killed.begin_transaction()
        write(killed, "of the killed one")
        killed.poll(1)
        with TransactionalProducer(config, name, "orders-1") as producer:
            with pytest.raises(ProducerFenced):
                killed.commit_transaction(60)
            # It cannot be sealed before the transaction that was left open has ended.
            transactions.split(0)
            write_until_committed(producer, END)
    assert committed(transactions) == {key: [END] for key in KEYS}


def test_killed_producers_leave_whole_transactions_only(transactions: ScalableTopic) -> None:
    config, name = transactions.config(), transactions.name
    told: dict[int, int] = {}
    changes = [lambda: transactions.split(0), lambda: transactions.split(1), lambda: transactions.merge(4, 2)]
    with ThreadPoolExecutor(1) as changing:
        for life, change in enumerate(changes):
            order = {"config": config, "topic": name, "id": "orders-1", "keys": KEYS, "life": life}
            command = [sys.executable, "-m", "tests.client.transaction_process", json.dumps(order)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                # Killed while a segment is sealed, or right after it: wherever it is then.
                lines = iter(process.stdout)
                next(lines)
                changed = changing.submit(change)
                next(lines)
                process.kill()
                told[life] = max(1, *map(int, lines), 1)
            # What the killed one has left open holds the seal up, until the next of its id comes.
            with TransactionalProducer(config, name, "orders-1", 60.0) as successor:
                write_until_committed(successor, f"{life}-end")
            changed.result(120)
    with TransactionalProducer(config, name, "orders-1", 60.0) as last:
        write_until_committed(last, END)
    (values,) = {tuple(values) for values in committed(transactions).values()}
    for life, number in told.items():
        numbers = [value.removeprefix(f"{life}-") for value in values if value.startswith(f"{life}-")]
        # The last commit may have been done and not told.
        assert numbers in ([*map(str, range(number + more)), "end"] for more in (1, 2))
    assert values[-1] == END


def test_aborted_messages_stay_invisible(transactions: ScalableTopic) -> None:
    with TransactionalProducer(transactions.config(), transactions.name, "orders-1") as producer:
        producer.begin_transaction()
        write(producer, "dropped")
        producer.abort_transaction()
        write_until_committed(producer, END)
    assert committed(transactions) == {key: [END] for key in KEYS}


def test_other_topics_and_producers_are_refused(topic: ScalableTopic) -> None:
    with pytest.raises(ClientSettingsError, match="transactions=true"):
        TransactionalProducer(topic.config(), topic.name, "orders-1")
    with pytest.raises(ClientSettingsError, match="TransactionalProducer"):
        Producer(topic.config(transactional_id="orders-1"), topic.name)

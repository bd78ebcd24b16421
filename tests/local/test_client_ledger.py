"""The ledger of real clients finds every lost, late and repeated message; its keys follow the demand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from anabranch.local.clients.keys import DemandByKey, make_keys
from anabranch.local.clients.ledger import VALUE_BYTES, LedgerTotals, MessageLedger
from anabranch.local.demand import demands
from anabranch.local.report import clients_line
from anabranch.local.story import HOT_HASH
from decisions.topic.hashing import key_hash
from tests.local.demonstration import NOW, traffic_settings


def ledger_of(*received: int, stored: int = 4) -> LedgerTotals:
    """Totals of a key with four messages, of which so many were stored, and these received in this order."""
    ledger = MessageLedger("a")
    values = [ledger.write_value(b"k") for _ in range(4)]
    for number, value in enumerate(values):
        ledger.settle(b"k", value, number < stored)
    ledger.receive((b"k", values[number]) for number in received)
    return ledger.totals()


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        ((0, 1, 2, 3), LedgerTotals(produced=4, consumed=4)),
        ((0, 1), LedgerTotals(produced=4, consumed=2, lost=2)),
        ((0, 1, 3), LedgerTotals(produced=4, consumed=3, lost=1)),
        ((0, 2, 1, 3), LedgerTotals(produced=4, consumed=4, out_of_order=1)),
        ((0, 1, 0, 1, 2, 3), LedgerTotals(produced=4, consumed=4, repeated=2)),
    ],
    ids=["all", "end-lost", "gap", "late", "again"],
)
def test_ledger_counts_lost_late_and_repeated(received, expected):
    assert ledger_of(*received) == expected


def test_failed_message_is_not_lost():
    assert ledger_of(0, 1, 2, stored=3) == LedgerTotals(produced=3, consumed=3, failed=1)
    # Its report was an error, and yet it came.
    assert ledger_of(0, 1, 2, 3, stored=3) == LedgerTotals(produced=4, consumed=4)


def test_message_read_before_its_failed_report_is_stored():
    ledger = MessageLedger("a")
    value = ledger.write_value(b"k")
    ledger.receive([(b"k", value)])
    ledger.settle(b"k", value, False)
    assert ledger.totals() == LedgerTotals(produced=1, consumed=1)


def test_messages_of_others_do_not_count():
    ledger = MessageLedger("a")
    ledger.receive([(b"k", b"hello"), (b"", b""), (b"k", b"ab 0 ..")])
    assert ledger.totals() == LedgerTotals()


def test_refused_message_takes_its_number_back():
    ledger = MessageLedger("a")
    first = ledger.write_value(b"k")
    ledger.take_back(b"k")
    assert ledger.write_value(b"k") == first
    assert len(first) == VALUE_BYTES


def test_messages_of_an_earlier_life_do_not_count():
    ledger, earlier = MessageLedger("b"), MessageLedger("a")
    ledger.receive([(b"k", earlier.write_value(b"k"))])
    assert ledger.totals() == LedgerTotals()


def test_report_ends_with_the_counts():
    counts = ledger_of(0, 1, 0, 3).counts()
    assert clients_line(counts) == "4 produced, 3 consumed, 1 lost, 0 out of order, 1 received again"


def test_keys_carry_the_load_of_their_ranges():
    (ramp, _, _, one_key, *_) = demands(traffic_settings(demand="story", peak_msg_rate_in=900), NOW)
    keys = make_keys()
    hashes = [key_hash(key) for key in keys]
    assert hashes == sorted(hashes)
    sent = Counter()
    for demand in (ramp, one_key):
        keyed = DemandByKey(demand, keys, NOW)
        for step in range(1, 601):
            sent[demand.topic] += Counter(keyed.due(NOW + step / 10)).total()
    seconds = np.arange(0.05, 60, 0.1)
    for demand in (ramp, one_key):
        wanted = sum(demand.momentary_rates(NOW + t, [0], [0xFFFF])[0] for t in seconds) / 10
        assert sent[demand.topic] == pytest.approx(wanted, rel=0.02, abs=len(keys))


def test_one_key_carries_all_of_the_hot_load():
    one_key = demands(traffic_settings(demand="story", peak_msg_rate_in=900), NOW)[3]
    keyed = DemandByKey(one_key, make_keys(), NOW + 60)
    sent = Counter(key for step in range(1, 101) for key in keyed.due(NOW + 60 + step / 10))
    (hot, count), (_, next_count) = sent.most_common(2)
    assert key_hash(hot) == HOT_HASH
    assert count > 0.7 * 900 * 10
    assert next_count < count / 10


def test_long_pause_is_not_made_up_for():
    steady = demands(traffic_settings(demand="story", peak_msg_rate_in=900), NOW)[5]
    keyed = DemandByKey(steady, make_keys(), NOW)
    assert len(list(keyed.due(NOW + 500))) < 900

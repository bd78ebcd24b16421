"""A sample of a message in columns comes to the bucket in which Spark puts what has its topic's name as key."""

from __future__ import annotations

import pytest

from schemas.codecs.columns import hash_of
from streaming.job.sources import buckets_of


@pytest.mark.spark
def test_the_hash_of_a_name_is_the_one_that_spark_has(spark):
    names = ["topic://acme/shop/" + "o" * length for length in range(80)] + [
        "topic://acme/shop/bestellungen-für-日本-🛒"
    ]
    for buckets in (16, 2**31 - 1):
        assert buckets_of(spark, names, buckets) == {name: hash_of(name) % buckets for name in names}
    assert {hash_of(name) < 0 for name in names} == {True, False}

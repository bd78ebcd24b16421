"""What the collector makes of answers that brokers of Pulsar 5.0.0-M1 with the extensible load manager have given."""

from __future__ import annotations

import pytest

from collectors.bundles import Unread, read_bundle_stats, read_usage
from schemas.bundles import NamespaceBundleStats, ResourceUsage

TOPIC = (
    '{"publishers":[{"msgRateIn":2.0}],"subscriptions":{"s":{"consumers":[{},{}]},"t":{"consumers":[]}},'
    '"msgRateIn":2.5,"msgThroughputIn":100.0,"msgRateOut":5.0,"msgThroughputOut":200.0}'
)
STATS = (
    '{"pulsar/system":{"0x40000000_0x50000000":{"persistent":{"persistent://pulsar/system/x":{}}}},'
    f'"public/hot":{{"0x00000000_0x40000000":{{"persistent":{{"a":{TOPIC},"b":{TOPIC}}}}}}}}}'
)
METRICS = b"""\
# TYPE pulsar_lb_cpu_usage gauge
pulsar_lb_bandwidth_in_usage{cluster="test", broker="127.0.0.1", metric="loadBalancing"} 0.0
pulsar_lb_cpu_usage{cluster="test", broker="127.0.0.1", metric="loadBalancing"} 99.52571
pulsar_lb_directMemory_usage{cluster="test", broker="127.0.0.1", metric="loadBalancing"} 5.0
pulsar_lb_resource_usage{cluster="test", broker="127.0.0.1", feature="max_ema", metric="loadBalancing"} 0.40
"""


def test_a_bundle_is_the_sum_of_its_topics_and_pulsars_own_are_left_out():
    assert read_bundle_stats(STATS.encode()) == {
        "public/hot/0x00000000_0x40000000": NamespaceBundleStats(
            msg_rate_in=5.0, msg_rate_out=10.0, msg_throughput_in=200.0, msg_throughput_out=400.0, topics=2,
            producer_count=2, consumer_count=4,
        )
    }  # fmt: skip


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a/b":{"0x0_0x1":[]}}', STATS.encode()[:-1]])
def test_an_answer_that_is_cut_or_another_is_no_load(body):
    with pytest.raises(Unread):
        read_bundle_stats(body)


def test_usage_is_percent_of_a_hundred():
    assert read_usage(METRICS) == {
        "bandwidth_in": ResourceUsage(usage=0.0, limit=100.0),
        "cpu": ResourceUsage(usage=99.52571, limit=100.0),
        "direct_memory": ResourceUsage(usage=5.0, limit=100.0),
    }

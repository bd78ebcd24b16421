"""What the collector makes of answers that brokers of Pulsar 5.0.0-M1 with the extensible load manager have given."""

from __future__ import annotations

import pytest

from anabranch.collectors.bundles import Unread, _chosen_settings, read_broker_load, read_bundle_stats, read_usage
from decisions.bundles.configuration import DEFAULTS
from schemas.bundles import NamespaceBundleStats, ResourceUsage

TOPIC = (
    '{"publishers":[{"msgRateIn":2.0}],"subscriptions":{"s":{"consumers":[{},{}]},"t":{"consumers":[]}},'
    '"msgRateIn":2.5,"msgThroughputIn":100.0,"msgRateOut":5.0,"msgThroughputOut":200.0}'
)
STATS = (
    '{"pulsar/system":{"0x40000000_0x50000000":{"persistent":{"persistent://pulsar/system/x":{}}}},'
    '"pulsar/test/127.0.0.1:8080":{"0x00000000_0xffffffff":{"persistent":{"a":{}}}},'
    '"pulsar/127.0.0.1:8080":{"0x00000000_0xffffffff":{"non-persistent":{"b":{}}}},'
    f'"public/hot":{{"0x00000000_0x40000000":{{"persistent":{{"a":{TOPIC},"b":{TOPIC}}}}}}}}}'
)
METRICS = b"""\
# TYPE pulsar_lb_cpu_usage gauge
pulsar_lb_bandwidth_in_usage{cluster="test", broker="127.0.0.1", metric="loadBalancing"} 0.0
pulsar_lb_cpu_usage{cluster="test", broker="127.0.0.1", metric="loadBalancing"} 99.52571
pulsar_lb_directMemory_usage{cluster="test", broker="127.0.0.1", metric="loadBalancing"} 5.0
pulsar_lb_resource_usage{cluster="test", broker="127.0.0.1", feature="max_ema", metric="loadBalancing"} 0.40
"""


def test_bundle_sums_topics_without_system_ones():
    assert read_bundle_stats(STATS.encode()) == {
        "public/hot/0x00000000_0x40000000": NamespaceBundleStats(
            msg_rate_in=5.0,
            msg_rate_out=10.0,
            msg_throughput_in=200.0,
            msg_throughput_out=400.0,
            topics=2,
            producer_count=2,
            consumer_count=4,
        )
    }


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a/b":{"0x0_0x1":[]}}', STATS.encode()[:-1]])
def test_an_answer_that_is_cut_or_another_is_no_load(body):
    with pytest.raises(Unread):
        read_bundle_stats(body)


def test_broker_settings_used_by_rules_reported():
    left_out = {"loadBalancerSheddingEnabled", "loadManagerClassName"}
    upstreams = {name for name in DEFAULTS if not name.startswith("gain")}
    told = _chosen_settings(dict.fromkeys(upstreams, "1") | {"brokerServicePort": "6650"}, None)
    assert told.keys() == upstreams - left_out
    assert {"failureDomainsEnabled", "loadBalancerAutoBundleSplitEnabled"} <= told.keys()
    assert _chosen_settings({"loadBalancerSheddingExcludedNamespaces": "[a/b, c/d]"}, None) == {
        "loadBalancerSheddingExcludedNamespaces": "a/b, c/d"
    }


def test_profile_default_keeps_its_own_strategies():
    settings = {"loadBalancerLoadSheddingStrategy": "OverloadShedder", "loadBalancerAutoBundleSplitEnabled": "false"}
    assert _chosen_settings(settings, "default") == {"loadBalancerAutoBundleSplitEnabled": "false"}


def test_usage_is_percent_of_a_hundred():
    assert read_usage(METRICS) == {
        "bandwidth_in": ResourceUsage(usage=0.0, limit=100.0),
        "cpu": ResourceUsage(usage=99.52571, limit=100.0),
        "direct_memory": ResourceUsage(usage=5.0, limit=100.0),
    }


def test_extensible_report_has_broker_average():
    stats = {f"public/hot/0x{low}0000000_0x{low}8000000": stat(100.0 * low) for low in range(3)}
    load = read_broker_load(stats, METRICS, 5)
    assert (load.weighted_max_e_m_a, load.updated_at) == (0.4, 5)
    assert (load.bundle_count, load.topics, load.msg_rate_in, load.msg_throughput_in) == (3, 3, 3.0, 300.0)
    assert load.cpu == ResourceUsage(usage=99.52571, limit=100.0)
    assert read_broker_load({}, b"", 5).weighted_max_e_m_a is None


def stat(throughput):
    return NamespaceBundleStats(msg_rate_in=1.0, msg_throughput_in=throughput, topics=1)

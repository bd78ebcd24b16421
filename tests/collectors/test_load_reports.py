"""Published loads, from what brokers of Pulsar 4.0.7 have written into ZooKeeper and sent to their topics."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from anabranch.admin.load_data import NoLoadData, TopicValues
from anabranch.collectors.bundles import BundleRounds
from anabranch.collectors.load_reports import PublishedLoads, UnknownLoad
from engine.bundles.clusters import ClusterState
from engine.bundles.cycle import run_cycle
from schemas.kafka.broker_messages import BalancerPolicies
from tests.collectors.test_bundle_rounds import NOW, Brokers, cluster, of  # noqa: F401

RECORDED = Path(__file__).parent / "recorded"
ZNODES = json.loads((RECORDED / "modular_4.0.7.json").read_text())
FRAMES = json.loads((RECORDED / "extensible_4.0.7.json").read_text())
BROKER = "127.0.0.1:50205"
BUNDLE = "public/shop/0xd0000000_0xe0000000"


def published(znodes=ZNODES, frames=FRAMES):
    def read(paths):
        return [None if (text := znodes.get(path)) is None else text.encode() for path in paths]

    topics = []
    for name in ("loads", "tops"):
        values = TopicValues(name)
        values.set_fault(None)
        for frame in frames[name]:
            values.take(json.dumps(frame))
        topics.append(values)
    return PublishedLoads(read, *topics)


def test_stored_report_carries_leader_averages():
    report = published().read_local("test", BROKER, NOW)
    assert report.forced
    assert (report.last_update, report.data.msg_rate_in) == (1795527743423, 301.59694977367724)
    assert report.data.cpu.usage == 199.80522267144403
    assert report.averages[BUNDLE].long_term_data.num_samples == 5
    assert report.averages[BUNDLE].long_term_data.msg_rate_in == 15.179770599051931


@pytest.mark.parametrize("path", [f"/loadbalance/brokers/{BROKER}", f"/loadbalance/bundle-data/{BUNDLE}"])
def test_damaged_znode_is_unknown_by_name(path):
    with pytest.raises(UnknownLoad, match=path):
        published({**ZNODES, path: ZNODES[path][:-9]}).read_local("test", BROKER, NOW)


def test_missing_report_unknown_average_absent():
    with pytest.raises(UnknownLoad, match="there is no /loadbalance/brokers/gone:1"):
        published().read_local("test", "gone:1", NOW)
    only = {path: text for path, text in ZNODES.items() if "bundle-data" not in path}
    assert published(only).read_local("test", BROKER, NOW).averages is None


def test_load_data_is_what_the_broker_sent():
    [key] = {frame["key"] for frame in FRAMES["tops"]}
    report = published().read_load_data("test", key, NOW)
    sent = json.loads(base64.b64decode(FRAMES["loads"][-1]["payload"]))
    assert report.forced
    assert report.last_update == sent["updatedAt"]
    assert report.data.msg_throughput_e_m_a == sent["msgThroughputEMA"]
    assert report.data.weighted_max_e_m_a == sent["weightedMaxEMA"]
    named = json.loads(base64.b64decode(FRAMES["tops"][-1]["payload"]))["topBundlesLoadData"]
    assert [one.bundle_name for one in report.top_bundles.top_bundles_load_data] == [one["bundleName"] for one in named]


def test_broker_that_was_not_heard_or_left_is_unknown():
    [key] = {frame["key"] for frame in FRAMES["tops"]}
    loads = published()
    with pytest.raises(UnknownLoad, match="nothing of gone:1"):
        loads.read_load_data("test", "gone:1", NOW)
    left = {**FRAMES, "loads": [*FRAMES["loads"], {**FRAMES["loads"][-1], "payload": ""}]}
    with pytest.raises(UnknownLoad, match=key):
        published(frames=left).read_load_data("test", key, NOW)


def test_lost_topic_unknown_until_followed():
    values = TopicValues("load")
    values.set_fault(None)
    values.take('{"messageId":"a","key":"b:1","payload":"e30="}')
    assert values.newest("b:1") == b"{}"
    values.set_fault("the broker answers 404")
    with pytest.raises(NoLoadData, match="404"):
        values.newest("b:1")


@pytest.mark.parametrize("frame", ["", "[]", "{}", '{"messageId":"a","key":"b","payload":"?"}'])
def test_frame_that_is_no_message_is_refused(frame):
    with pytest.raises(ValueError):
        TopicValues("load").take(frame)


def test_load_that_cannot_be_read_holds_the_cluster(cluster):  # noqa: F811
    state = ClusterState("west")
    for message in BundleRounds(Brokers(cluster)).read(NOW):
        state.store_message(message)
    assert run_cycle(state, NOW + 1).shedding.gate != "settings"
    cluster["class"] = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
    rounds = BundleRounds(Brokers(cluster), published=published())
    [policies] = rounds.read(NOW + 2)
    assert isinstance(policies, BalancerPolicies)
    assert "there is no /loadbalance/brokers/127.0.0.1:8081" in policies.unreadable
    state.store_message(policies)
    held = run_cycle(state, NOW + 3).shedding
    assert (held.gate, held.decisions) == ("settings", [])
    assert "/loadbalance/brokers/127.0.0.1:8081" in held.reason


def test_extensible_brokers_asked_for_shedder(cluster):  # noqa: F811
    rounds = BundleRounds(Brokers(cluster), {"loadBalancerLoadSheddingStrategy": "UniformLoadShedder"}, published())
    assert not of(BalancerPolicies, rounds.read(NOW))[0].unreadable
    rounds = BundleRounds(Brokers(cluster), {"loadBalancerLoadSheddingStrategy": "TransferShedder"}, published())
    assert "has had nothing of 127.0.0.1:8081" in rounds.read(NOW)[0].unreadable


def test_average_goes_on_from_the_leaders():
    state = ClusterState("test")
    report = published().read_local("test", BROKER, NOW)
    state.store_message(report)
    run_cycle(state, report.last_update + 1)
    # Pulsar's leader had five samples, three of zero; the sixth is the report's.
    assert state.averages[BUNDLE].long_term_data.num_samples == 6
    assert state.averages[BUNDLE].long_term_data.msg_rate_in == pytest.approx(37.94942649762983 * 3 / 6)
    again = report.model_copy(update={"data": report.data.model_copy(update={"last_update": report.last_update + 9})})
    state.store_message(again)
    run_cycle(state, report.last_update + 10)
    assert state.averages[BUNDLE].long_term_data.num_samples == 7

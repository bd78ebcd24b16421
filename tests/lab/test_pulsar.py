"""A standalone Pulsar of the lab: its data survives kill -9 and other ports, and with tokens it lets nobody else in."""

from __future__ import annotations

import psutil
import pytest

from admin.answers import Answered, Denied
from admin.topics import ScalableTopics
from lab.java_home import SetupError
from lab.pulsar.standalone import StandalonePulsar
from tests.admin.conftest import transport
from tests.waiting import wait_until

TOPIC = "topic://public/default/orders"


def topics_of(pulsar, token=None):
    return ScalableTopics(transport(pulsar.admin_url, token, 20))


def epoch_of(topics):
    found = topics.layout(TOPIC)
    assert isinstance(found, Answered), found
    return found.value.epoch


@pytest.mark.pulsar
def test_layouts_survive_a_kill_and_other_ports_and_a_token_is_asked_for(tmp_path, pulsar_jars):
    first = StandalonePulsar(tmp_path, pulsar_jars, tokens=True, settings={"scalableTopicMaxSegments": 9})
    try:
        first.start()
        topics = topics_of(first, first.token())
        assert topics.create_topic(TOPIC, 2, {}) == Answered(None)
        assert topics.split_segment(TOPIC, 0) == Answered(None)
        for stranger in (topics_of(first), topics_of(first, "wrong"), topics_of(first, first.token("nobody"))):
            assert isinstance(stranger.split_segment(TOPIC, 1), Denied)
        listening = [one.laddr for one in psutil.Process(first.process.pid).net_connections() if one.status == "LISTEN"]
        assert {place.ip.removeprefix("::ffff:") for place in listening} == {"127.0.0.1"}
        assert {first.port, first.web_port} <= {place.port for place in listening}
    finally:
        first.kill()
    again = StandalonePulsar(tmp_path, pulsar_jars, tokens=True)
    try:
        again.start()
        topics = topics_of(again, first.token())
        assert epoch_of(topics) == 1
        assert topics.split_segment(TOPIC, 1) == Answered(None)
        assert epoch_of(topics) == 2
    finally:
        again.stop()
    wait_until(lambda: not psutil.pid_exists(again.process.pid))


@pytest.mark.pulsar
def test_a_setting_that_is_none_is_said_with_the_end_of_the_log(tmp_path, pulsar_jars):
    wrong = StandalonePulsar(tmp_path, pulsar_jars, settings={"managedLedgerDefaultEnsembleSize": "many"})
    with pytest.raises(SetupError, match=r"Pulsar did not start; the end of .*pulsar\.log"):
        wrong.start()
    assert wrong.process.poll() is not None

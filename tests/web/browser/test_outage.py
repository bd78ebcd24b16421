"""A collector that is killed is shown on an open page."""

from __future__ import annotations

import time

import pytest

from anabranch.local.broker import free_ports
from lake.tables import create_lake
from tests.collectors.test_process import running, settings_file
from tests.harness.fake_pulsar import serving_cluster

pytestmark = [pytest.mark.browser, pytest.mark.broker]

SHOWN_WITHIN_S = 15


def test_open_page_tells_that_the_collector_was_killed(look, tmp_path, broker):
    lake, (port,) = str(tmp_path / "lake"), free_ports(1)
    create_lake(lake)
    metrics = f"metrics_port = {port}\n"
    with serving_cluster(brokers=2) as cluster:
        cluster.topic("topic://acme/shop/orders", 2)
        file = settings_file(tmp_path, broker, cluster.brokers[0].url, "acme/shop")
        file.write_text(file.read_text() + metrics)
        with running(file) as collector:
            page = look(lake, "[collect]", metrics)
            page.open("/")
            page.until("2 of 2 brokers answer, 2 of 2 segments seen", "#standing")
            page.driver.execute_script("window.same = true")
            killed_at = time.monotonic()
            collector.kill()
            page.until("collector no answer for ", "#standing")
            assert time.monotonic() - killed_at < SHOWN_WITHIN_S
            assert page.driver.execute_script("return window.same") is True

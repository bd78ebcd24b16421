"""Real producers and consumers of the local run on a real broker, across a split and a merge: every message is read."""

from __future__ import annotations

import json
import threading
from contextlib import closing

import pytest

from anabranch.controller.segments.kafka import KafkaSegments
from anabranch.local.clients.traffic import run_clients
from anabranch.local.report import CLIENTS_FILE
from anabranch.local.traffic import controller_topics
from schemas.kafka.connection import KafkaConnection
from schemas.settings.root import load_settings
from tests.client.scalable_topic import ScalableTopic
from tests.controller.conftest import run_controller
from tests.waiting import wait_until


@pytest.mark.broker
def test_clients_lose_nothing_across_changes(broker, tmp_path):
    segments = KafkaSegments(KafkaConnection(broker.bootstrap))
    with run_controller(tmp_path / "layouts.db", broker.bootstrap, segments=segments) as controller:
        overlay = tmp_path / "own.toml"
        overlay.write_text(
            f'[kafka]\nbootstrap = "{broker.bootstrap}"\n[controller]\nurl = "{controller.url}"\n'
            f'[local]\nfolder = "{tmp_path}"\n'
            '[traffic]\nnamespace = "acme/clients"\ntopics = 2\ndemand = "story"\nload = "clients"\n'
        )
        settings = load_settings([overlay], environment={}).model_copy(update={"home": tmp_path})
        settings = settings.model_copy(
            update={"traffic": settings.traffic.model_copy(update={"peak_msg_rate_in": 2_000.0})}
        )
        stop, results = threading.Event(), []

        def count(name: str) -> int:
            file = tmp_path / CLIENTS_FILE
            return json.loads(file.read_text())[name] if file.exists() else 0

        with closing(controller_topics(settings)) as topics:
            run = threading.Thread(target=lambda: results.append(run_clients(settings, topics, stop)))
            run.start()
            try:
                topic = ScalableTopic("topic://acme/clients/orders", controller.client, broker.bootstrap)
                wait_until(lambda: count("consumed") > 200, 120)
                topic.split(0)
                before = count("consumed")
                wait_until(lambda: count("consumed") > before + 200, 120)
                topic.merge(1, 2)
                before = count("consumed")
                wait_until(lambda: count("consumed") > before + 200, 120)
            finally:
                stop.set()
                run.join()
        (counts,) = results
        assert counts["produced"] == counts["consumed"] > 600
        assert (counts["lost"], counts["outOfOrder"], counts["failed"]) == (0, 0, 0)
        assert sum(1 for _ in topic.messages()) <= counts["consumed"]

"""Watch sessions of the clients at a real controller: layouts as they change, kept while nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from anabranch.local.broker import free_ports
from anabranch_client.config import ControllerAccess
from anabranch_client.consumer_session import Registration
from anabranch_client.controller import Controller, read_message
from anabranch_client.errors import ControllerUnavailable, IncompatibleController, NotAuthorized, TopicRemoved
from anabranch_client.layout import Layout
from anabranch_client.watch import MIN_DELAY_SECONDS, LayoutWatch, next_delay
from schemas.tls import TlsFiles, client_context
from tests import tls
from tests.controller.conftest import NOWHERE, run_controller
from tests.controller.processes import ControllerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.process

NAME = "topic://acme/shop/orders"
PATH = "/admin/v2/scalable/acme/shop/orders"


@contextmanager
def watching(*urls: str, token: str = "") -> Iterator[LayoutWatch]:
    watch = LayoutWatch(Controller(ControllerAccess(urls, token)), NAME)
    try:
        yield watch
    finally:
        watch.close()


def test_watch_brings_each_layout(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db") as controller:
        controller.client.put(PATH)
        with watching(controller.url) as watch:
            first = watch.first(30)
            assert (first.epoch, len(first.active)) == (0, 1)
            controller.client.post(f"{PATH}/split/0")
            second = watch.newer_than(first, 30)
            assert second is not None
            assert (second.epoch, [segment.id for segment in second.active]) == (1, [1, 2])
            assert second.leader_url == controller.url
            assert watch.error is None


def test_layout_is_kept_while_controller_is_away(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db") as controller:
        controller.client.put(PATH)
        with watching(controller.url) as watch:
            first = watch.first(30)
            controller.stop()
            wait_until(lambda: isinstance(watch.error, ControllerUnavailable))
            assert watch.layout is first


def test_deleted_topic_has_no_layout_until_recreated(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db") as controller:
        controller.client.put(PATH)
        with watching(controller.url) as watch:
            first = watch.first(30)
            controller.client.delete(PATH)
            wait_until(lambda: isinstance(watch.error, TopicRemoved))
            assert watch.layout is None
            controller.client.put(PATH)
            again = watch.newer_than(first, 30)
            assert again is not None
            assert again.active[0].kafka_topic != first.active[0].kafka_topic


def test_node_that_answers_is_found_behind_one_that_does_not(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db") as controller:
        controller.client.put(PATH)
        with watching(f"http://{NOWHERE}", controller.url) as watch:
            assert watch.first(30).epoch == 0


def test_older_layout_of_a_lagging_node_is_ignored() -> None:
    record = {"epoch": 1, "createdAtMs": 5, "segments": {"0": _segment(0)}}
    newer = Layout.from_record(NAME, record)
    assert not Layout.from_record(NAME, {**record, "epoch": 0}).replaces(newer)
    assert not Layout.from_record(NAME, {**record, "epoch": 9, "createdAtMs": 4}).replaces(newer)
    assert Layout.from_record(NAME, {**record, "epoch": 0, "createdAtMs": 6}).replaces(newer)


def test_sessions_that_end_at_once_are_not_stormed() -> None:
    delays = [MIN_DELAY_SECONDS]
    for _ in range(8):
        delays.append(next_delay(delays[-1], 0.01))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert next_delay(5.0, 60) == MIN_DELAY_SECONDS


def test_wrong_token_is_not_authorized(tmp_path: Path) -> None:
    with run_controller(tmp_path / "layouts.db", token="s3cret") as controller:
        headers = {"Authorization": "Bearer s3cret"}
        assert controller.client.put(PATH, headers=headers).status_code == 204
        with watching(controller.url, token="wrong") as watch, pytest.raises(NotAuthorized, match="check its token"):
            watch.first(30)
        with watching(controller.url, token="s3cret") as watch:
            assert watch.first(30).epoch == 0
        assert Controller(ControllerAccess((controller.url,), "s3cret")).layout(NAME).epoch == 0


def test_session_over_tls_registers_and_leaves(tmp_path: Path) -> None:
    files = TlsFiles(tls.certificate("client"), tls.key("client"), tls.CA)
    own = f'certificate = "{tls.certificate("server")}"\nkey = "{tls.key("server")}"\nclient_ca = "{tls.CA}"\n'
    service = ControllerProcess(tmp_path, more=own, tls=client_context(files))
    with service.life() as (client, _):
        assert client.put(PATH).status_code == 204
        access = ControllerAccess(
            (service.url,), ca=str(files.ca), certificate=str(files.certificate), key=str(files.key)
        )
        with Controller(access).open(NAME, "/consumers") as session:
            session.send(Registration(NAME, "billing", "one").command)
            assert read_message(session.receive())["command"] == "assignment"
            session.leave()
            with pytest.raises(ConnectionClosed):
                session.receive()
        session.leave()


def test_absent_controller_is_unavailable() -> None:
    controller = Controller(ControllerAccess((f"http://{NOWHERE}", f"http://127.0.0.1:{free_ports(1)[0]}")))
    with pytest.raises(ControllerUnavailable, match="start it, or correct"):
        controller.layout(NAME)


def test_message_of_another_version_is_incompatible() -> None:
    with pytest.raises(IncompatibleController, match="use a client of its version"):
        Layout.from_update(NAME, {"topic": NAME, "epoch": 3})


def _segment(id: int) -> dict[str, object]:
    return {"segmentId": id, "hashRange": {"start": 0, "end": 0xFFFF}, "state": "ACTIVE"}

"""Which namespaces there are: by configuration, creation, topics or a policy; calls about others are 404, as Pulsar."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.auth.tokens import add_token
from anabranch.controller.errors import Conflict, NotFound
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.namespaces import Namespaces
from decisions.autoscale.policy import ClusterPolicy
from schemas.kafka.messages import PolicyEvent
from schemas.metadata import AutoScalePolicyOverride
from tests.controller.conftest import RunningController, run_controller
from tests.controller.owned import OwnedStore

SHORT = AutoScalePolicyOverride(max_segments=4)


def paths(namespace: str) -> tuple[str, str, str]:
    """Of the namespace, of its policy, and of a topic in it."""
    of_namespace = f"/admin/v2/namespaces/{namespace}"
    return of_namespace, f"{of_namespace}/scalableTopicAutoScalePolicy", f"/admin/v2/scalable/{namespace}/t"


def test_missing_namespace_is_404(controller: RunningController, namespace: str) -> None:
    of_namespace, of_policy, of_topic = paths(namespace)
    calls = [("GET", of_policy), ("POST", of_policy), ("DELETE", of_policy), ("DELETE", of_namespace)]
    for verb, path in calls:
        answer = controller.client.request(verb, path, json={"maxSegments": 4} if verb == "POST" else None)
        assert answer.status_code == 404
        assert answer.json() == {"reason": f"Namespace does not exist: {namespace}; create it, or a topic in it"}
    assert controller.client.get("/admin/v2/namespaces/nobody").status_code == 404
    assert controller.client.get(of_topic.removesuffix("/t")).json() == []


def test_created_namespace_has_policy_until_deleted(controller: RunningController, namespace: str) -> None:
    of_namespace, of_policy, _ = paths(namespace)
    assert controller.client.put(of_namespace).status_code == 204
    for body in (b"", b'{"replication_clusters": ["standalone"]}'):
        assert controller.client.put(of_namespace, content=body).status_code == 409
    assert namespace in controller.client.get("/admin/v2/namespaces/acme").json()
    assert controller.client.get(of_policy).content == b""
    assert controller.client.post(of_policy, json={"maxSegments": 4}).status_code == 204
    assert controller.client.delete(of_namespace).status_code == 204
    assert controller.client.get(of_policy).status_code == 404
    assert namespace not in controller.client.get("/admin/v2/namespaces/acme").json()
    told = [e.policy for e in controller.announced() if isinstance(e, PolicyEvent) and e.name == namespace]
    assert [policy and policy.max_segments for policy in told] == [4, None]


def test_a_namespace_exists_while_it_has_a_topic(controller: RunningController, namespace: str) -> None:
    of_namespace, of_policy, of_topic = paths(namespace)
    assert controller.client.put(of_topic).status_code == 204
    assert controller.client.get(of_policy).status_code == 200
    assert controller.client.put(of_namespace).status_code == 409
    assert controller.client.delete(of_namespace, params={"force": "true"}).status_code == 409
    assert namespace in controller.client.get("/admin/v2/namespaces/acme").json()
    assert controller.client.delete(of_topic).status_code == 204
    assert controller.client.get(of_policy).status_code == 404


def test_every_spelling_is_the_same_namespace(controller: RunningController) -> None:
    assert controller.client.put("/admin/v2/namespaces/a%20b/x%2520%2Fy").status_code == 204
    assert controller.client.put("/admin/v2/namespaces/a%2520b/x%20%252Fy").status_code == 409
    assert controller.client.get("/admin/v2/namespaces/%61%20b").json() == ["a%20b/x%20%2Fy"]


@pytest.mark.process
def test_list_limited_to_namespaces_of_token(tmp_path: Path) -> None:
    tokens = {
        name: add_token(tmp_path / "tokens", name, "admin", scope)
        for name, scope in {"all": [], "some": ["t/a", "t/c"], "whole": ["t"], "other": ["u"]}.items()
    }
    with run_controller(tmp_path / "layouts.db", tokens_file=tmp_path / "tokens") as running:
        as_one = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
        for name in "ab":
            assert running.client.put(f"/admin/v2/namespaces/t/{name}", headers=as_one["all"]).status_code == 204
        assert running.client.put("/admin/v2/namespaces/t/c", headers=as_one["some"]).status_code == 204
        assert running.client.put("/admin/v2/namespaces/t/d", headers=as_one["some"]).status_code == 403
        seen = {name: running.client.get("/admin/v2/namespaces/t", headers=header) for name, header in as_one.items()}
        assert seen.pop("other").status_code == 403
        every = ["t/a", "t/b", "t/c"]
        assert {name: answer.json() for name, answer in seen.items()} == {
            "all": every,
            "some": ["t/a", "t/c"],
            "whole": every,
        }


@pytest.fixture
def namespaces(tmp_path: Path) -> tuple[Namespaces, OwnedStore]:
    store = OwnedStore(SqliteStore(tmp_path / "layouts.db"))
    return Namespaces(store, ["acme/shop"], ClusterPolicy("default"), lambda: 1), store


def test_configured_namespace_cannot_be_deleted(namespaces: tuple[Namespaces, OwnedStore]) -> None:
    found, _ = namespaces
    assert found.policy("acme/shop") is None
    found.set_policy("acme/shop", SHORT)
    assert found.of_tenant("acme") == ["acme/shop"]
    with pytest.raises(Conflict, match="already exists"):
        found.create("acme/shop")
    with pytest.raises(Conflict, match="named in the controller's settings"):
        found.delete("acme/shop")


def test_inherited_policy_without_topics_removable(namespaces: tuple[Namespaces, OwnedStore]) -> None:
    found, store = namespaces
    with store.write_policy() as transaction:
        transaction.set_namespace_policy("old/one", SHORT)
    assert found.of_tenant("old") == ["old/one"]
    assert found.policy("old/one") == SHORT
    found.set_policy("old/one", None)
    with pytest.raises(NotFound):
        found.policy("old/one")

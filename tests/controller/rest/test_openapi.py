"""The interface describes itself: every route, what it takes, and what it really answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.controller.conftest import RunningController

Operations = dict[tuple[str, str], dict[str, Any]]

NAMESPACE = "/admin/v2/scalable/{tenant}/{namespace}"
TOPIC = f"{NAMESPACE}/{{topic}}"
SEGMENT = "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"
POLICIES = f"{TOPIC}/autoScalePolicy", "/admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"
PLACES = {
    "segment": "0",
    "first": "0",
    "second": "1",
    "subscription": "s",
    "consumer": "c",
    "descriptor": "0000-ffff-0",
}


@pytest.fixture
def document(controller: RunningController) -> dict[str, Any]:
    described: dict[str, Any] = controller.client.get("/openapi.json").json()
    return described


@pytest.fixture
def operations(document: dict[str, Any]) -> Operations:
    return {
        (verb.upper(), path): operation
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    }


def test_every_supported_pulsar_call_is_described(operations: Operations) -> None:
    assert set(operations) >= {
        ("GET", NAMESPACE),
        ("PUT", TOPIC),
        ("GET", TOPIC),
        ("DELETE", TOPIC),
        ("GET", f"{TOPIC}/stats"),
        ("POST", f"{TOPIC}/split/{{segment}}"),
        ("POST", f"{TOPIC}/merge/{{first}}/{{second}}"),
        ("PUT", f"{TOPIC}/subscriptions/{{subscription}}"),
        ("DELETE", f"{TOPIC}/subscriptions/{{subscription}}"),
        *(("POST", f"{TOPIC}/subscriptions/{{subscription}}/{move}") for move in ("seek", "skip-all")),
        *(("POST", f"{SEGMENT}/subscription/{{subscription}}/{move}") for move in ("seek", "skip-all")),
        ("POST", f"{TOPIC}/migrate"),
        *((verb, SEGMENT) for verb in ("PUT", "DELETE")),
        ("POST", f"{SEGMENT}/terminate"),
        ("GET", f"{SEGMENT}/subscription/{{subscription}}/backlog"),
        *((verb, path) for verb in ("GET", "POST", "DELETE") for path in POLICIES),
    }


def test_every_operation_documents_its_contract(operations: Operations) -> None:
    for (_, path), operation in operations.items():
        assert operation["description"]
        parameters = operation.get("parameters", [])
        assert {each["name"] for each in parameters if each["in"] == "path"} == set(re.findall(r"{(\w+)}", path))
        refusal = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
        assert refusal == {"$ref": "#/components/schemas/Refusal"}
        assert "422" not in operation["responses"]


def test_bodies_described_by_their_fields(document: dict[str, Any], operations: Operations) -> None:
    policy = {"$ref": "#/components/schemas/AutoScalePolicyOverride"}
    for path in POLICIES:
        assert operations["POST", path]["requestBody"]["content"]["application/json"]["schema"] == policy
        assert operations["GET", path]["responses"]["200"]["content"]["application/json"]["schema"] == policy
    properties = operations["PUT", TOPIC]["requestBody"]["content"]["application/json"]["schema"]
    assert properties == {"type": "object", "additionalProperties": {"type": "string"}}
    layout = operations["GET", TOPIC]["responses"]["200"]["content"]["application/json"]["schema"]
    assert layout == {"$ref": "#/components/schemas/ScalableTopicMetadata"}
    fields = document["components"]["schemas"]["AutoScalePolicyOverride"]["properties"]
    assert {"enabled", "maxSegments", "splitMsgRateInThreshold", "mergeWindowSeconds"} <= set(fields)
    assert {"epoch", "nextSegmentId", "segments"} <= set(
        document["components"]["schemas"]["ScalableTopicMetadata"]["properties"]
    )


@pytest.mark.parametrize("exists", [True, False])
def test_operations_answer_with_documented_status(
    controller: RunningController, operations: Operations, namespace: str, exists: bool
) -> None:
    tenant, name = namespace.split("/")
    places = {"tenant": tenant, "namespace": name, "topic": "t", **PLACES}
    answered: set[str] = set()
    for (verb, template), operation in operations.items():
        path = re.sub(r"{(\w+)}", lambda place: places[place[1]], template)
        controller.client.request("PUT" if exists else "DELETE", f"/admin/v2/scalable/{namespace}/t")
        with controller.client.stream(verb, path) as answer:
            status = str(answer.status_code)
        answered.add(status)
        described = set(operation["responses"])
        assert status in described or ("4XX" in described and status.startswith("4")), (verb, path, status)
    assert ({"200", "204"} if exists else {"404"}) <= answered

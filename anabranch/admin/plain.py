"""Calls on plain topics: unload, and properties of a subscription; the topic's owner carries out both.

Stage: beside `topics`, over the same transport. Paths are those of Pulsar 2.10 to 5. A topic is named as in Pulsar's
metadata: `tenant/namespace/persistent/name`, with the name encoded as in a URL.
"""

import json
from collections.abc import Mapping
from urllib.parse import quote, unquote_plus

from anabranch.admin.answers import Answered, Reply, Response, judge_response
from anabranch.admin.paths import path_part
from anabranch.admin.transport import Transport


class PlainTopics:
    """Plain topics behind one admin interface; thread-safe. Faults are returned, never raised."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def unload(self, topic: str) -> Reply[None]:
        """PUT …/unload: the owner closes the topic, which folds its cursors into their records."""
        return self._put(f"{_path(topic)}/unload", None)

    def set_subscription_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> Reply[None]:
        """PUT …/subscription/S/properties: replace all properties. `subscription` is encoded like the topic."""
        return self._put(
            f"{_path(topic)}/subscription/{_encode_again(subscription)}/properties", json.dumps(dict(properties))
        )

    def _put(self, path: str, body: str | None) -> Reply[None]:
        answer = self._transport.exchange("PUT", path, None, body)
        reply = judge_response(answer) if isinstance(answer, Response) else answer
        return Answered(None) if isinstance(reply, Answered) else reply


def _path(topic: str) -> str:
    tenant, namespace, domain, name = topic.split("/", 3)
    return f"/admin/v2/{path_part(domain)}/{_encode_again(tenant)}/{_encode_again(namespace)}/{_encode_again(name)}"


def _encode_again(name: str) -> str:
    """Encode a name for a path; the metadata has `+` for a space, a path does not."""
    return path_part(quote(unquote_plus(name), safe=""))

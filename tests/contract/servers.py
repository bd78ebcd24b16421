"""The two servers of the contract, and what is prepared at each: topics that calls are refused on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from anabranch.admin.answers import Answered, Reply
from anabranch.admin.topics import ScalableTopics
from schemas.metadata import AutoScalePolicyOverride
from tests.admin.conftest import transport
from tests.controller.plain_http import PLAIN

TENANT = "public"


@dataclass
class Server:
    """An admin interface, and a namespace on it."""

    kind: str
    """`anabranch` or `pulsar`."""
    url: str
    namespace: str
    topics: ScalableTopics
    """The project's own client."""
    http: httpx.Client
    """For calls that the client does not make."""
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))

    def name(self) -> str:
        """A topic that nobody has used."""
        return f"topic://{self.namespace}/t{next(self.numbers)}"

    def layout(self, topic: str) -> dict[str, Any]:
        """The record of a layout, without the instants and what only one of the servers says."""
        record = done(self.topics.layout_record(topic))
        record.pop("createdAtMs", None)
        for segment in record["segments"].values():
            assert (segment.pop("sealedAtMs") == -1) == segment["active"]
            assert segment.pop("createdAtMs") > 0
        return record


def done(reply: Reply[Any]) -> Any:
    """What was answered; fails the test for a fault."""
    assert isinstance(reply, Answered), reply
    return reply.value


@contextmanager
def open_server(kind: str, url: str) -> Iterator[Server]:
    """A server in a namespace of its own, with a topic that has a sealed segment, and one that is split down to one
    value of the hash."""
    topics = ScalableTopics(transport(url, timeout_seconds=30))
    namespace = f"{TENANT}/contract"
    done(topics.create_namespace(namespace))
    with httpx.Client(base_url=f"{url}/admin/v2", timeout=30, verify=PLAIN) as client:
        server = Server(kind, url, namespace, topics, client)
        prepare(server)
        yield server
    topics.close()


def prepare(server: Server) -> None:
    """`t` has the active segments 1, 2 and 3, a policy and a subscription; `w` has a segment of width 1, 31; the
    namespace `public/full` has a topic."""
    t, w = (f"topic://{server.namespace}/{name}" for name in "tw")
    done(server.topics.create_topic(t, 2, {"owner": "me"}))
    done(server.topics.split_segment(t, 0))
    done(server.topics.set_policy(t, AutoScalePolicyOverride(max_segments=8)))
    assert server.http.put(f"/scalable/{server.namespace}/t/subscriptions/s?type=STREAM").status_code == 204
    done(server.topics.create_topic(w, 1, {}))
    for segment in (0, *range(1, 31, 2)):
        done(server.topics.split_segment(w, segment))
    done(server.topics.create_topic(f"topic://{server.namespace}/p", 1, {}))
    done(server.topics.create_namespace(f"{TENANT}/full"))
    done(server.topics.create_topic(f"topic://{TENANT}/full/t", 1, {}))

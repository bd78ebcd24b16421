"""Calls on bundles: list a namespace's or a broker's, unload to a broker, split.

No query assigns a bundle to a broker, as a lookup would. Paths and responses are those of Pulsar 2.10 to 5.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from anabranch.admin.answers import Answered, Nonsense, Reply, Response, judge_response
from anabranch.admin.paths import namespace_record_path, path_part
from anabranch.admin.transport import ANNOUNCED_PATH, Query, Transport

BUNDLE_PATTERN = r"[^/\s]+/[^/\s]+/0x[0-9a-f]{8}_0x[0-9a-f]{8}"
"""A bundle with its namespace: `tenant/namespace/0x00000000_0x40000000`."""


class BundleAdmin:
    """Bundles behind one admin interface; thread-safe. Faults are returned, never raised."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def ranges(self, namespace: str) -> Reply[tuple[str, ...]]:
        """Return the ranges of a namespace's bundles in order, each like `0x00000000_0x40000000`."""
        reply = self._get(f"{namespace_record_path(namespace)}/bundles")
        if not isinstance(reply, Answered):
            return reply
        edges = reply.value.get("boundaries") if isinstance(reply.value, dict) else None
        if not isinstance(edges, list) or len(edges) < 2 or not all(isinstance(edge, str) for edge in edges):
            return Nonsense(f"the boundaries of {namespace} were expected")
        return Answered(tuple(f"{low}_{high}" for low, high in pairwise(edges)))

    def owned(self, cluster: str, broker: str) -> Reply[frozenset[str]]:
        """Return the bundles that a broker, `host:port`, serves now, except those it is about to release."""
        names = path_part(quote(cluster, safe="")), path_part(quote(broker, safe=":"))
        reply = self._get(f"{ANNOUNCED_PATH}/{'/'.join(names)}/ownedNamespaces")
        if not isinstance(reply, Answered):
            return reply
        statuses = reply.value
        if not isinstance(statuses, dict) or not all(isinstance(status, dict) for status in statuses.values()):
            return Nonsense(f"the bundles of {broker} were expected")
        return Answered(frozenset(name for name, status in statuses.items() if status.get("is_active") is not False))

    def unload(self, namespace: str, range: str, destination: str) -> Reply[None]:
        """PUT …/RANGE/unload: the owner stops serving the bundle, and `destination` should take it.

        A success does not guarantee that it did.
        """
        return self._put(namespace, f"{range}/unload", {"destinationBroker": destination})

    def split(self, namespace: str, range: str, positions: Sequence[int] = ()) -> Reply[None]:
        """PUT …/RANGE/split: at these hashes, or where Pulsar's algorithm chooses; halves are not moved."""
        if not positions:
            return self._put(namespace, f"{range}/split", {"unload": "false"})
        query = {"unload": "false", "splitAlgorithmName": "specified_positions_divide"}
        return self._put(namespace, f"{range}/split", query, json.dumps(list(positions)))

    def _put(self, namespace: str, call: str, query: Query, body: str | None = None) -> Reply[None]:
        answer = self._transport.exchange("PUT", f"{namespace_record_path(namespace)}/{call}", query, body)
        reply = judge_response(answer) if isinstance(answer, Response) else answer
        return Answered(None) if isinstance(reply, Answered) else reply

    def _get(self, path: str) -> Reply[Any]:
        answer = self._transport.exchange("GET", path)
        reply = judge_response(answer) if isinstance(answer, Response) else answer
        if not isinstance(reply, Answered):
            return reply
        try:
            return Answered(json.loads(reply.value))
        except (ValueError, RecursionError):
            return Nonsense("the answer is no JSON")

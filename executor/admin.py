"""The admin REST interface of Pulsar 5 as the executor needs it: read a layout, split, merge; every answer typed.

Stage: under the actors; the only module that speaks HTTP (DESIGN section 4.4). The same client works against our
controller and a real Pulsar 5. It never retries and never raises for what a server or a network does: an answer that
does not say clearly "done" or "that is wrong" is `NoAnswer`, and then the layout has to be asked.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin

import httpx
from pydantic import ValidationError

from decisions.topic.layout import LayoutError, SegmentLayout
from executor.kernel.family import Accepted, NoAnswer, Refused
from schemas.ids import topic_parts
from schemas.metadata import ScalableTopicMetadata

DECISION_HEADER = "X-Anabranch-Decision"
MAX_BODY_BYTES = 128 * 1_048_576
"""An answer above this is not read on: the largest layout that is accepted has 131,072 segments."""
MAX_REDIRECTS = 5
KEEP_ALIVE_SECONDS = 3.0
"""Shorter than a server's own (uvicorn: 5 s), so that a call does not go out on a connection that is being closed."""

_SHOWN = 500
_RETRIED_4XX = frozenset({408, 425, 429})
# Pulsar 5.0.0 has no mapping for the layout's exceptions: a wrong argument is a 500 with their stack trace.
_WRONG_ARGUMENT = re.compile(r"Stacktrace:\s*java\.lang\.Illegal(?:Argument|State)Exception\b")
_MESSAGE = re.compile(r"^Message: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class TopicGone:
    """The interface has said that there is no such topic."""

    reason: str


class AdminClient:
    """One admin interface; used by several threads at once."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float) -> None:
        """`url` is the base, without `/admin/v2`; `timeout_seconds` bounds each answer as a whole."""
        self._base = url.rstrip("/")
        self._timeout = timeout_seconds
        self._headers = {"Accept": "application/json", "User-Agent": "anabranch-executor"}
        if token:
            self._headers |= {"Authorization": f"Bearer {token}", "X-Pulsar-Auth-Method-Name": "token"}
        self._http = httpx.Client(
            timeout=timeout_seconds,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS),
            verify=ssl.create_default_context(),
            # Neither proxies nor .netrc of the environment: credentials come from the settings alone.
            trust_env=False,
        )

    def layout(self, topic: str) -> SegmentLayout | TopicGone | NoAnswer:
        """The layout of a topic as it is now."""
        answer = self._send("GET", self._path(topic), {})
        if isinstance(answer, NoAnswer):
            return answer
        status, body = answer
        if status == 200:
            try:
                return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(body))
            except (ValidationError, LayoutError) as error:
                return NoAnswer(f"GET {topic} was answered with what is no layout: {str(error)[:_SHOWN]}")
        reason = _json_reason(body)
        if status == 404 and reason is not None:
            return TopicGone(reason)
        return _no_answer(status, f"GET {topic}", body)

    def split_segment(self, topic: str, segment: int, decision_id: str) -> Accepted | Refused | NoAnswer:
        """POST …/split/ID."""
        return self._call(f"{self._path(topic)}/split/{segment}", decision_id)

    def merge_segments(self, topic: str, first: int, second: int, decision_id: str) -> Accepted | Refused | NoAnswer:
        """POST …/merge/ID1/ID2."""
        return self._call(f"{self._path(topic)}/merge/{first}/{second}", decision_id)

    def close(self) -> None:
        """Drop all connections; calls that wait for an answer end with `NoAnswer`."""
        self._http.close()

    def _path(self, topic: str) -> str:
        parts = "/".join(_segment(part) for part in topic_parts(topic).path.split("/"))
        return f"{self._base}/admin/v2/scalable/{parts}"

    def _call(self, url: str, decision_id: str) -> Accepted | Refused | NoAnswer:
        headers = {DECISION_HEADER: decision_id, "Content-Type": "application/json"}
        answer = self._send("POST", url, headers)
        if isinstance(answer, NoAnswer):
            return answer
        status, body = answer
        if 200 <= status < 300:
            return Accepted()
        text = _json_reason(body) or ""
        if status == 500 and _WRONG_ARGUMENT.search(text):
            return Refused(_described(status, body))
        if 400 <= status < 500 and status not in (401, 403) and status not in _RETRIED_4XX:
            return Refused(_described(status, body))
        return _no_answer(status, "the call", body)

    def _send(self, method: str, url: str, headers: dict[str, str]) -> tuple[int, bytes] | NoAnswer:
        deadline = time.monotonic() + self._timeout
        content = b"" if method == "POST" else None
        try:
            for _ in range(MAX_REDIRECTS + 1):
                with self._http.stream(method, url, content=content, headers=self._headers | headers) as response:
                    if response.status_code not in (307, 308):
                        return response.status_code, _body(response, deadline)
                    # By hand: to the leader on another host, httpx would drop the token that the leader asks for.
                    target = urljoin(url, response.headers.get("location", ""))
                    if not target.startswith("https://" if url.startswith("https://") else ("http://", "https://")):
                        return NoAnswer(f"{method} {url} redirects to {target[:200]!r}, which is not followed")
                    url = target
            return NoAnswer(f"{method} {url}: more than {MAX_REDIRECTS} redirects")
        except _TooMuch as error:
            return NoAnswer(f"{method} {url}: {error}")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError) as error:
            # RuntimeError: the client was closed while the process stops.
            return NoAnswer(f"{method} {url}: {type(error).__name__}: {error}"[:_SHOWN])


class _TooMuch(Exception):
    pass


def _body(response: httpx.Response, deadline: float) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _TooMuch(f"the answer is larger than {MAX_BODY_BYTES} bytes")
        if time.monotonic() > deadline:
            raise _TooMuch("the answer did not end in time")
    return bytes(body)


def _segment(part: str) -> str:
    """A part of a name in a path: triplets stay as they are, and `..` does not climb."""
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return quote(part, safe="%!$&'()*+,;=:@~")


def _no_answer(status: int, what: str, body: bytes) -> NoAnswer:
    return NoAnswer(f"{what} was answered with {_described(status, body)}", denied=status in (401, 403))


def _described(status: int, body: bytes) -> str:
    """Status and reason in one line; of a stack trace only its message."""
    reason = _json_reason(body)
    text = body[:_SHOWN].decode("utf-8", "replace") if reason is None else reason
    message = _MESSAGE.search(text)
    line = " ".join((message[1] if message else text).split())
    return f"{status} {line}".strip()[:_SHOWN]


def _json_reason(body: bytes) -> str | None:
    """The `reason` of an error body of the admin interface; None for any other body."""
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    reason = parsed.get("reason") if isinstance(parsed, dict) else None
    return reason if isinstance(reason, str) else None

"""The admin REST interface of Pulsar 5 for people at a command line: every refusal is one sentence and an exit code.

Stage: under `anabranch.commands.topics`. The paths are those of DESIGN section 4.4, so a real Pulsar 5 can stand behind
the URL as well. The executor has a client of its own, which has to tell apart what may be tried again; this one never
tries again.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urljoin

import click
import httpx
from pydantic import ValidationError

from anabranch.printable import printable
from decisions.topic.layout import LayoutError, SegmentLayout
from schemas.ids import topic_parts
from schemas.metadata import AutoScalePolicyOverride, ScalableTopicMetadata

TIMEOUT_SECONDS = 30.0
"""Longest silence of the server; a split on a busy Pulsar takes about a second."""
MAX_REDIRECTS = 5
_SILENCE = httpx.Timeout(TIMEOUT_SECONDS, read=60)
"""A server that pushes sends at least a comment every 15 s."""

_SHOWN = 1000
_MESSAGE = re.compile(r"^Message: (.+)$", re.MULTILINE)
_SUFFIX = "scalableTopicAutoScalePolicy"


class Refused(click.ClickException):
    """The server has said no; the message is the server's."""

    exit_code = 1

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(click.ClickException):
    """No answer of an admin interface came from the URL; the message says which URL and what to do."""

    exit_code = 3


class NoWatch(Exception):
    """The server does not push layouts: it answered with this status."""


class AdminInterface:
    """One admin interface. Every call raises `Refused` or `Unreachable`; a topic is `topic://tenant/namespace/name`."""

    def __init__(self, url: str, token: str | None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """`url` is the base, without `/admin/v2`. Raises `click.UsageError` for what is no such URL."""
        self.url = _checked(url)
        self._headers = {"Accept": "application/json", "User-Agent": "anabranch-topics"}
        if token:
            self._headers |= {"Authorization": f"Bearer {token}", "X-Pulsar-Auth-Method-Name": "token"}
        self._http = httpx.Client(
            timeout=timeout_seconds,
            verify=ssl.create_default_context(),
            # Neither proxies nor .netrc of the environment: credentials come from the settings alone.
            trust_env=False,
        )

    def create_topic(self, topic: str, segments: int, properties: dict[str, str]) -> None:
        """PUT: a topic with `segments` equal segments."""
        self._call("PUT", _topic_path(topic), {"numInitialSegments": str(segments)}, json.dumps(properties))

    def list_topics(self, namespace: str, properties: list[str]) -> list[str]:
        """The topics of `tenant/namespace` that have all `properties`, each `key=value`."""
        found = self._json("GET", f"scalable/{_path(namespace)}", {"property": properties})
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise self._no_interface("a list of names was expected")
        return found

    def layout_record(self, topic: str) -> Any:
        """The layout record (`ScalableTopicMetadata`) as the server has it, JSON."""
        return self._json("GET", _topic_path(topic))

    def layout(self, topic: str) -> SegmentLayout:
        """The layout; `Refused` as well when the record is no layout."""
        try:
            return SegmentLayout.from_metadata(
                ScalableTopicMetadata.model_validate_json(self._call("GET", _topic_path(topic)))
            )
        except (ValidationError, LayoutError) as error:
            raise Refused(200, f"the layout of {printable(topic)} cannot be read: {printable(str(error))}") from None

    def watch(self, topic: str, since: int) -> Iterator[SegmentLayout]:
        """Every layout after epoch `since`, pushed by the server; ends when the server ends it.

        `NoWatch` when it does not push, and `Unreachable` when it falls silent.
        """
        headers = self._headers | {"Accept": "text/event-stream", "Last-Event-ID": str(since)}
        url = f"{self.url}/admin/v2/{_topic_path(topic)}/watch"
        try:
            with self._http.stream("GET", url, headers=headers, timeout=_SILENCE) as answer:
                if answer.status_code != 200 or "text/event-stream" not in answer.headers.get("content-type", ""):
                    raise NoWatch(answer.status_code)
                for line in answer.iter_lines():
                    if line.startswith('data: {"topic"'):
                        yield _watched(line.removeprefix("data: "))
        except (httpx.HTTPError, OSError) as error:
            raise Unreachable(f"no answer from {self.url} ({type(error).__name__}: {error})") from None

    def stats(self, topic: str) -> Any:
        """What the server counts of a topic, JSON; the fields differ between servers."""
        return self._json("GET", f"{_topic_path(topic)}/stats")

    def split_segment(self, topic: str, segment: int) -> None:
        """POST …/split/ID."""
        self._call("POST", f"{_topic_path(topic)}/split/{segment}")

    def merge_segments(self, topic: str, first: int, second: int) -> None:
        """POST …/merge/ID1/ID2."""
        self._call("POST", f"{_topic_path(topic)}/merge/{first}/{second}")

    def seek_subscription(self, topic: str, subscription: str, timestamp_ms: int) -> None:
        """POST …/subscriptions/S/seek: on every segment, to the first message of that time or later (ms since 1970)."""
        self._call("POST", f"{_subscription_path(topic, subscription)}/seek", {"timestamp": str(timestamp_ms)})

    def clear_backlog(self, topic: str, subscription: str) -> None:
        """POST …/subscriptions/S/skip-all: on every segment, behind the last message."""
        self._call("POST", f"{_subscription_path(topic, subscription)}/skip-all")

    def delete_topic(self, topic: str, force: bool) -> None:
        """DELETE, with `force` also when the topic is in use."""
        self._call("DELETE", _topic_path(topic), {"force": str(force).lower()})

    def policy(self, subject: str) -> dict[str, Any] | None:
        """The override of a topic or of `tenant/namespace` as it was set; None when there is none."""
        body = self._call("GET", _policy_path(subject))
        if not body.strip():
            return None
        found = self._parsed(body)
        if not isinstance(found, dict):
            raise self._no_interface("a policy was expected")
        return found

    def set_policy(self, subject: str, override: AutoScalePolicyOverride) -> None:
        """Replaces the override of a topic or of `tenant/namespace`."""
        self._call("POST", _policy_path(subject), body=override.to_json())

    def remove_policy(self, subject: str) -> None:
        """Removes the override of a topic or of `tenant/namespace`."""
        self._call("DELETE", _policy_path(subject))

    def _json(self, method: str, path: str, params: dict[str, Any] | None = None) -> Any:
        return self._parsed(self._call(method, path, params))

    def _parsed(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self._no_interface("the answer is no JSON") from None

    def _no_interface(self, what: str) -> Unreachable:
        return Unreachable(f"{self.url} is no admin interface of scalable topics ({what}): check --url")

    def _call(self, method: str, path: str, params: dict[str, Any] | None = None, body: str | None = None) -> bytes:
        """The body of a success."""
        url = str(httpx.URL(f"{self.url}/admin/v2/{path}", params=params or None))
        headers = self._headers if body is None else self._headers | {"Content-Type": "application/json"}
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._send(method, url, headers, body)
            if answer.status_code not in (307, 308):
                break
            # By hand: to the leader on another host, httpx would drop the token that the leader asks for.
            target = urljoin(url, answer.headers.get("location", ""))
            if not target.startswith("https://" if url.startswith("https://") else ("http://", "https://")):
                raise Unreachable(f"{url} redirects to {printable(target[:200])!r}, which is not followed")
            url = target
        else:
            raise Unreachable(f"{self.url}: more than {MAX_REDIRECTS} redirects")
        if not answer.is_success:
            raise Refused(answer.status_code, _refusal(answer))
        return answer.content

    def _send(self, method: str, url: str, headers: dict[str, str], body: str | None) -> httpx.Response:
        try:
            return self._http.request(method, url, headers=headers, content=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(
                f"nothing answers at {self.url} ({error}): start it with anabranch controller, or say where it is with "
                "--url or ANABRANCH_CONTROLLER_URL"
            ) from None
        except (httpx.HTTPError, OSError) as error:
            hint = "try again" if method == "GET" else "it may have been done, so look before you try again"
            raise Unreachable(f"no answer from {self.url} ({type(error).__name__}: {error}): {hint}") from None


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise click.UsageError(f"--url: {error}") from None
    if parsed.userinfo:
        raise click.UsageError("--url holds a password: give a token by ANABRANCH_CONTROLLER_TOKEN instead")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise click.UsageError(f"--url: {printable(url)!r} is no address like http://127.0.0.1:8080")
    return url.rstrip("/")


def _path(name: str) -> str:
    return "/".join(_segment(part) for part in name.split("/"))


def _topic_path(topic: str) -> str:
    return "scalable/" + "/".join(_segment(part) for part in topic_parts(topic))


def _subscription_path(topic: str, subscription: str) -> str:
    """The name is decoded once by the server, so a percent sign is a character like others."""
    return f"{_topic_path(topic)}/subscriptions/{_segment(quote(subscription, safe=''))}"


def _policy_path(subject: str) -> str:
    if "://" in subject:
        return f"{_topic_path(subject)}/autoScalePolicy"
    return f"namespaces/{_path(subject)}/{_SUFFIX}"


def _watched(message: str) -> SegmentLayout:
    try:
        return SegmentLayout.from_metadata(ScalableTopicMetadata.model_validate_json(json.dumps(_layout_of(message))))
    except (ValueError, RecursionError, LayoutError) as error:
        raise Refused(200, f"a layout that was pushed cannot be read: {printable(str(error))}") from None


def _layout_of(message: str) -> Any:
    found = json.loads(message)
    if not isinstance(found, dict) or "layout" not in found:
        raise ValueError("it has no layout")
    return found["layout"]


def _segment(part: str) -> str:
    """A part of a name in a path: percent triplets stay as they are, and neither `..` nor a slash climbs."""
    if part in (".", ".."):
        return part.replace(".", "%2E")
    return quote(part, safe="%!$&'()*+,;=:@~")


def _refusal(answer: httpx.Response) -> str:
    """The server's reason in one line, of a stack trace only its message; and what to do about a missing token."""
    try:
        parsed = json.loads(answer.content)
        reason = parsed["reason"]
    except (ValueError, RecursionError, KeyError, TypeError):
        reason = answer.text[:_SHOWN].strip() or answer.reason_phrase
    message = _MESSAGE.search(str(reason))
    line = printable(" ".join((message[1] if message else str(reason)).split()))[:_SHOWN]
    if answer.status_code == 401:
        line += "; set ANABRANCH_CONTROLLER_TOKEN"
    return f"{line} ({answer.status_code})"

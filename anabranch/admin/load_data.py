"""Load data that brokers with the extensible load manager publish, followed on its two topics.

The topics are not persistent and cannot be read later, so the newest values are kept by broker.

After each change of owners both brokers retract their values by messages without a payload. Pulsar 4.0's WebSocket
service fails at such a message: it sends nothing any more, and the connection stays open. So the broker is asked how
much it gave to our reader. If that is more than has come, the reader is replaced, and nothing is known until the
brokers publish again.
"""

import base64
import json
import secrets
import ssl
import threading
from collections.abc import Callable
from urllib.parse import quote

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from anabranch.admin.answers import Answered, Reply
from anabranch.admin.cluster import ReaderProgress
from anabranch.admin.credentials import Credentials, FixedToken, NoToken

BROKER_LOAD = "non-persistent/pulsar/system/loadbalancer-broker-load-data"
TOP_BUNDLES = "non-persistent/pulsar/system/loadbalancer-top-bundles-load-data"
MAX_MESSAGE_BYTES = 8 * 1_048_576
RECONNECT_SECONDS = 2.0
SILENCE_SECONDS = 2.0
"""Silence after which the broker is asked whether the reader still works."""


class NoLoadData(Exception):
    """A topic is not followed, or has no data of a broker yet; the message says which and why."""


class TopicValues:
    """Newest value of each key of a topic; thread-safe."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._values: dict[str, bytes] = {}
        self._fault: str | None = "not connected yet"
        self.received = 0
        """Messages since the last `reset`."""

    def reset(self) -> None:
        """Forget all values: a new reader has not seen what was retracted before."""
        with self._lock:
            self._values.clear()
            self.received = 0

    def newest(self, key: str) -> bytes:
        """Return the newest value of `key`. Raises `NoLoadData` if it is unknown."""
        with self._lock:
            if self._fault is not None:
                raise NoLoadData(f"{self._name} is not followed: {self._fault}")
            if key not in self._values:
                raise NoLoadData(
                    f"{self._name} has had nothing of {key} since it is followed; brokers publish when their load "
                    "changes, and after loadBalancerReportUpdateMaxIntervalMinutes"
                )
            return self._values[key]

    def take(self, frame: str | bytes) -> str:
        """Store a frame's value, or drop its key without one; return its message id. Raises `ValueError`."""
        message = json.loads(frame)
        if not isinstance(message, dict):
            raise ValueError("a frame that is no message")
        key, identity, payload = message.get("key"), message.get("messageId"), message.get("payload") or ""
        if not (isinstance(key, str) and isinstance(identity, str) and isinstance(payload, str)):
            raise ValueError("a message without key, id or payload")
        value = base64.b64decode(payload, validate=True)
        with self._lock:
            self.received += 1
            if value and value != b"null":
                self._values[key] = value
            else:
                self._values.pop(key, None)
        return identity

    def set_fault(self, why: str | None) -> None:
        """Set the reason why the topic is not followed; None: it is followed."""
        with self._lock:
            self._fault = why


class FollowedTopic:
    """A topic followed by a thread until it is closed."""

    def __init__(
        self,
        url: str,
        credentials: str | Credentials | None,
        topic: str,
        progress: Callable[[str, str], Reply[ReaderProgress | None]],
        *,
        timeout_seconds: float,
        tls: ssl.SSLContext | None = None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """`url`: an admin interface's base; `topic`: `non-persistent/TENANT/NAMESPACE/NAME`."""
        scheme, _, address = url.rstrip("/").partition("://")
        is_secure = scheme == "https"
        self._address = f"{'wss' if is_secure else 'ws'}://{address}/ws/v2/reader/{quote(topic)}?messageId=latest"
        self._timeout, self._tls = timeout_seconds, tls if is_secure else None
        self._topic, self._progress, self._silence = topic, progress, silence_seconds
        self._credentials = FixedToken(credentials) if isinstance(credentials, str) else credentials
        self._closed, self._tried = threading.Event(), threading.Event()
        self._values = TopicValues(topic.rpartition("/")[2])
        self._connection: ClientConnection | None = None
        self._thread = threading.Thread(target=self._follow, name="load-data", daemon=True)
        self._thread.start()

    def newest(self, key: str) -> bytes:
        """Return the newest value of `key`. Raises `NoLoadData` if it is unknown."""
        self._tried.wait(self._timeout)
        return self._values.newest(key)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        if self._connection is not None:
            self._connection.close()
        self._thread.join(self._timeout)

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                self._read_all()
                why = "the broker has ended the connection"
            except InvalidStatus as error:
                status = error.response.status_code
                hint = ": is webSocketServiceEnabled=true in broker.conf?" if status == 404 else ""
                why = f"the broker answers {status}{hint}"
            except (WebSocketException, OSError, NoToken, ValueError) as error:
                why = f"{type(error).__name__}: {error}"[:300]
            self._values.set_fault(why)
            self._tried.set()
            self._closed.wait(RECONNECT_SECONDS)

    def _read_all(self) -> None:
        """Read until the connection or its reader ends."""
        token = None if self._credentials is None else self._credentials.token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        reader = f"anabranch-{secrets.token_hex(8)}"
        with connect(
            f"{self._address}&readerName={reader}",
            additional_headers=headers,
            ssl=self._tls,
            open_timeout=self._timeout,
            max_size=MAX_MESSAGE_BYTES,
            proxy=None,
        ) as connection:
            self._connection = connection
            self._values.reset()
            began: str | None = None
            while not self._closed.is_set():
                try:
                    frame = connection.recv(timeout=self._silence)
                except TimeoutError:
                    began = self._require_working(reader, began)
                else:
                    connection.send(json.dumps({"messageId": self._values.take(frame)}))
                    if began is None:
                        began = self._require_working(reader, began)
                self._tried.set()

    def _require_working(self, reader: str, began: str | None) -> str | None:
        """Require that all that the broker gave to the reader has come, by its count.

        `began` is when the reader connected, as seen before: after a move of the topic the count begins anew. Raises
        `OSError` if the reader has to be replaced. While the broker does not tell, the topic is not followed.
        """
        received = self._values.received
        reply = self._progress(self._topic, reader)
        if not isinstance(reply, Answered):
            self._values.set_fault(f"its statistics cannot be read: {reply}"[:300])
            return began
        progress = reply.value
        if progress is None or (began is not None and progress.connected_since != began):
            raise OSError("the topic has moved to another broker")
        if progress.sent > received and not self._has_come(progress.sent):
            raise OSError("the broker's WebSocket service sends nothing any more, as after a retracted value")
        self._values.set_fault(None)
        return progress.connected_since

    def _has_come(self, sent: int) -> bool:
        """Take messages that are on their way; return whether as many as were sent have come."""
        connection = self._connection
        try:
            while connection is not None and self._values.received < sent:
                frame = connection.recv(timeout=self._silence)
                connection.send(json.dumps({"messageId": self._values.take(frame)}))
        except TimeoutError:
            return False
        return True

"""Keep one consumer registered at the controller that leads its topic.

Stage: below `stream_consumer`, a thread of its own. The session reconnects by itself, to the announced leader or to the
next configured address; within the grace period the controller gives the same segments back. While it is away, the last
assignment stays in force: Kafka fences a consumer whose segments were given to another.
"""

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from websockets.exceptions import WebSocketException

from anabranch_client.controller import Controller, read_message
from anabranch_client.errors import (
    AnabranchError,
    ConsumerReplaced,
    ControllerUnavailable,
    IncompatibleController,
    NotAuthorized,
    SubscriptionConflict,
    TopicNotFound,
)
from anabranch_client.session import ControllerSession
from anabranch_client.watch import MIN_DELAY_SECONDS, next_delay

log = logging.getLogger(__name__)

CONSUMER_ID = 1
"""Id of the only consumer of a connection."""
REPLACED = "the consumer connected again"
"""Reason of the controller when a newer connection has taken the consumer's name."""


@dataclass(frozen=True)
class Registration:
    """Identity of a consumer in its subscription."""

    topic: str
    subscription: str
    name: str
    type: str = "STREAM"

    @property
    def command(self) -> str:
        """Return the message that registers it."""
        names = {"subscription": self.subscription, "type": self.type, "consumerName": self.name}
        return json.dumps({"command": "register", "consumerId": CONSUMER_ID, **names})


class ConsumerSession:
    """Registration of one consumer, renewed until `close`."""

    def __init__(
        self,
        controller: Controller,
        registration: Registration,
        on_assignment: Callable[[Mapping[str, Any]], None],
        on_failure: Callable[[AnabranchError], None],
    ) -> None:
        """Both callbacks run in the thread of the session; after a failure it has ended."""
        self._controller, self._registration = controller, registration
        self._on_assignment, self._on_failure = on_assignment, on_failure
        self._closing = threading.Event()
        self._session: ControllerSession | None = None
        self._leader = ""
        self.is_connected = False
        """True while the assignment is the controller's present one."""
        self._thread = threading.Thread(target=self._run, name=f"session of {registration.name}", daemon=True)

    def start(self) -> None:
        """Connect and register."""
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Leave the subscription, so that its segments go to others without a grace period."""
        self._closing.set()
        if (session := self._session) is not None:
            session.leave(json.dumps({"command": "leave", "consumerId": CONSUMER_ID}))
        self._thread.join(timeout)

    def _run(self) -> None:
        delay = MIN_DELAY_SECONDS
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                self._serve()
            except (ControllerUnavailable, OSError, WebSocketException) as error:
                if not self._closing.is_set():
                    log.info("the session of %s is interrupted: %s", self._registration.name, error)
            except AnabranchError as failure:
                self._on_failure(failure)
                return
            except Exception as error:
                log.exception("the session of %s failed", self._registration.name)
                self._on_failure(IncompatibleController(f"a message of the controller cannot be used: {error!r}"))
                return
            finally:
                self.is_connected, self._session = False, None
            delay = next_delay(delay, time.monotonic() - begun)
            self._closing.wait(delay * random.uniform(0.5, 1))

    def _serve(self) -> None:
        """Register over one connection, and receive until it ends."""
        leader, self._leader = self._leader, ""
        with self._controller.open(self._registration.topic, "/consumers", leader) as session:
            self._session = session
            session.send(self._registration.command)
            while not self._closing.is_set():
                self._receive(read_message(session.receive()))

    def _receive(self, message: Mapping[str, Any]) -> None:
        command = message["command"]
        if command == "assignment":
            self.is_connected = True
            self._on_assignment(message["assignment"])
            return
        self._leader = message.get("controllerBrokerUrl") or ""
        reason = message.get("reason") or "another node leads the topic"
        if command == "closed" and reason == REPLACED:
            name = self._registration.name
            raise ConsumerReplaced(f"another process registered as {name}: give every consumer a name of its own")
        if command == "error":
            self._refuse(int(message["status"]), reason)
        raise ControllerUnavailable(reason)

    def _refuse(self, status: int, reason: str) -> None:
        """Raise the error of a refusal that does not pass by itself."""
        if status == 404:
            raise TopicNotFound(self._registration.topic)
        if status in (401, 403):
            raise NotAuthorized(reason)
        if 400 <= status < 500 and status != 429 and not self._leader:
            raise SubscriptionConflict(f"{self._registration.subscription}: {reason}")

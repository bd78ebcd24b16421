"""Watch session: the newest layout of a topic, kept across reconnects.

A thread holds a WebSocket to any node of the controller. Layouts never go back: one of an older epoch, from a node that
lags, is ignored. While no controller answers the last layout stays valid; the thread tries again with back-off.
"""

import logging
import random
import threading
import time
from collections.abc import Callable

from websockets.exceptions import ConnectionClosed

from anabranch_client.controller import Controller, read_message
from anabranch_client.errors import AnabranchError, ClientClosed, ControllerUnavailable, TopicNotFound, TopicRemoved
from anabranch_client.layout import Layout
from anabranch_client.names import full_name
from anabranch_client.session import ControllerSession

log = logging.getLogger(__name__)

MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.1, 5.0
"""Back-off between two attempts to connect, doubled each time; the actual delay is 50 to 100 % of it."""


class LayoutWatch:
    """Newest layout of a topic, updated in the background until `close`."""

    def __init__(self, controller: Controller, topic: str, on_change: Callable[[], None] = lambda: None) -> None:
        """Begin to watch. `on_change` is called from the thread after `layout` or `error` has changed; be quick."""
        self.topic = full_name(topic)
        self._controller, self._on_change = controller, on_change
        self._changed = threading.Condition()
        self.layout: Layout | None = None
        """The newest known layout; None before the first, and after a deletion."""
        self.error: AnabranchError | None = None
        """Reason of the missing connection; None while connected."""
        self._closing = threading.Event()
        self._session: ControllerSession | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch {self.topic}", daemon=True)
        self._thread.start()

    def first(self, timeout: float) -> Layout:
        """Return the layout, waiting for it if there is none yet. Raises the reason if there is none."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.layout is not None or self._closing.is_set() or _is_final(self.error), timeout
            )
            if self.layout is not None:
                return self.layout
            if self._closing.is_set():
                raise ClientClosed(f"the watch of {self.topic} is closed: create another client")
            error = self.error or ControllerUnavailable(f"no layout of {self.topic} within {timeout:g} s: try again")
            raise error.with_traceback(None)

    def newer_than(self, layout: Layout | None, timeout: float) -> Layout | None:
        """Return a layout that replaces `layout`, waiting for it; None if there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_newer(layout) or self._closing.is_set(), timeout)
            return self.layout if self._is_newer(layout) else None

    def close(self) -> None:
        """End the session; idempotent."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
            session = self._session
        if session is not None:
            session.leave()
        if threading.current_thread() is not self._thread:
            self._thread.join(MAX_DELAY_SECONDS)

    def _is_newer(self, layout: Layout | None) -> bool:
        return self.layout is not None and self.layout.replaces(layout)

    def _run(self) -> None:
        delay = MIN_DELAY_SECONDS
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                self._follow()
                error: AnabranchError = ControllerUnavailable(f"the watch session of {self.topic} has ended")
            except AnabranchError as caught:
                error = caught
            except Exception as caught:
                log.exception("the watch session of %s failed", self.topic)
                error = ControllerUnavailable(repr(caught))
            self._fail(error)
            delay = next_delay(delay, time.monotonic() - begun)
            self._closing.wait(delay * random.uniform(0.5, 1))

    def _follow(self) -> None:
        """Follow one session to its end."""
        # Without `since`: a topic that was recreated and has reached the same epoch would otherwise stay unnoticed.
        session = self._controller.open(self.topic, "/watch")
        with self._changed:
            self._session = session
        try:
            while not self._closing.is_set():
                self._receive(Layout.from_update(self.topic, read_message(session.receive())))
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == DELETED:
                raise TopicRemoved(self.topic) from closed
        finally:
            self._session = None
            session.close()

    def _receive(self, layout: Layout) -> None:
        with self._changed:
            self.error = None
            # The same epoch again: another leader, or another policy.
            if self.layout is None or not self.layout.replaces(layout):
                self.layout = layout
            self._changed.notify_all()
        self._on_change()

    def _fail(self, error: AnabranchError) -> None:
        with self._changed:
            if isinstance(error, TopicNotFound):
                if self.layout is not None or isinstance(self.error, TopicRemoved):
                    error = TopicRemoved(self.topic)
                self.layout = None
            elif _is_final(self.error) and isinstance(error, ControllerUnavailable):
                # A deletion stays the reason until a controller says otherwise.
                return
            self.error = error
            self._changed.notify_all()
        log.log(logging.INFO if error.is_retriable else logging.WARNING, "%s", error)
        self._on_change()


def next_delay(delay: float, lasted_seconds: float) -> float:
    """Return the back-off after an attempt: doubled, unless its session has lasted longer than the longest.

    So a node that accepts sessions and drops them at once is not stormed.
    """
    return MIN_DELAY_SECONDS if lasted_seconds > MAX_DELAY_SECONDS else min(2 * delay, MAX_DELAY_SECONDS)


DELETED = 4404
"""Code with which the controller closes the sessions of a deleted topic."""


def _is_final(error: AnabranchError | None) -> bool:
    """Return whether waiting does not help."""
    return error is not None and not error.is_retriable

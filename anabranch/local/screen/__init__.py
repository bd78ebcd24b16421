"""The live screen of the local run: what the system does, and why each quiet topic is quiet.

Stage: the end of the local loop, for a person's eyes. Reads the lake through `anabranch.history.live`, the parts from
the supervisor; writes to nothing but the terminal.

- `frame`     one frame as a pure function of view, parts and terminal size
- `keyspace`  a topic's segments as a shaded strip
- `loads`     messages a second and consumer lag, where segments are in Kafka
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from rich.console import Console
from rich.live import Live

from anabranch.collectors.status import SEGMENTS_FILE
from anabranch.history.live import LakeReader
from anabranch.history.picture import LakeView
from anabranch.local.processes import PartState
from anabranch.local.screen.frame import frame
from anabranch.local.screen.loads import read_loads
from schemas.settings.root import Settings

__all__ = ["frame", "run_screen"]

FRAMES_PER_SECOND = 4
LOOKS_PER_SECOND = 2
"""How often the lake is asked for news; ages and waits move with every frame."""

log = logging.getLogger(__name__)


def run_screen(
    settings: Settings, parts: Callable[[], Sequence[PartState]], stop: threading.Event, console: Console | None = None
) -> LakeView:
    """Draw until `stop` is set, restore the terminal, and return the last view.

    A lake that cannot be read for a moment leaves the last picture standing; drawing never ends the local run.
    """
    terminal = console or Console()
    started, loads = time.monotonic(), settings.path(settings.collect.folder) / SEGMENTS_FILE
    newest = LakeView(now=_now())
    lock = threading.Lock()

    def look() -> None:
        nonlocal newest
        reader = LakeReader(settings.lake_path)
        while not stop.is_set():
            try:
                view = reader.refresh()
            except Exception:
                log.exception("the lake could not be read; trying again")
            else:
                with lock:
                    newest = view
            stop.wait(1 / LOOKS_PER_SECOND)

    looking = threading.Thread(target=look, name="lake-view", daemon=True)
    looking.start()
    with Live(console=terminal, screen=terminal.is_terminal, auto_refresh=False, transient=True) as live:
        while not stop.is_set():
            with lock:
                view = newest
            size = terminal.size
            elapsed = time.monotonic() - started
            drawn = frame(replace(view, now=_now()), parts(), size.width, size.height, elapsed, read_loads(loads))
            live.update(drawn, refresh=True)
            stop.wait(1 / FRAMES_PER_SECOND)
    looking.join(5)
    return newest


def _now() -> datetime:
    return datetime.now(timezone.utc)

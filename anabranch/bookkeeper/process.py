"""One run of the Java program of the sidecar: requests and answers, matched by number.

Stage: under `sidecar`, which starts the next run when one has ended.
"""

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from schemas.settings.root import without_secrets


class SidecarLost(RuntimeError):
    """The program died, or did not answer in time: nobody knows whether what was asked has been done."""


class SidecarProcess:
    """Sidecar process, for any thread; it ends with this one, as its standard input then ends."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._numbers, self._lock = count(1), threading.Lock()
        self._asked: dict[int, Future[dict[str, Any]]] = {}
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env=without_secrets(os.environ),
            )
        self._ended = False
        threading.Thread(target=self._read, name="ledger sidecar", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """True while requests can be sent."""
        return not self._ended

    def ask(self, request: Mapping[str, object], deadline_s: float) -> dict[str, Any]:
        """Return its answer. Raises `SidecarLost`; after the deadline it is killed, which ends what it does."""
        answer: Future[dict[str, Any]] = Future()
        assert self._process.stdin is not None
        with self._lock:
            if self._ended:
                raise SidecarLost("the program that handles ledgers has ended")
            number = next(self._numbers)
            self._asked[number] = answer
            try:
                self._process.stdin.write(json.dumps({"id": number, **request}) + "\n")
                self._process.stdin.flush()
            except OSError as error:
                self._ended = True
                raise SidecarLost(f"the program that handles ledgers has ended: {error}") from None
        try:
            return answer.result(deadline_s)
        except TimeoutError:
            self.kill()
            raise SidecarLost(f"no answer to {request.get('op')} within {deadline_s:g} s: killed") from None

    def kill(self) -> None:
        """SIGKILL; returns when it is gone, and from its beginning on nothing is asked of it any more."""
        self._ended = True
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                # The last line of one that was killed while it wrote.
                continue
            if (asked := self._asked.pop(answer["id"], None)) is not None:
                asked.set_result(answer)
        with self._lock:
            self._ended = True
            left = list(self._asked.values())
            self._asked.clear()
        for future in left:
            future.set_exception(SidecarLost("the program that handles ledgers died meanwhile"))
        self._process.wait()

"""`anabranch serve controller` in a process of its own."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.controller.conftest import NOWHERE
from tests.controller.plain_http import PLAIN

ROOT = Path(__file__).resolve().parents[2]


class ControllerProcess:
    """A controller on one database through all its restarts."""

    def __init__(
        self,
        folder: Path,
        segments: str = "none",
        bootstrap: str = NOWHERE,
        more: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`more`: further lines of `[controller]`; `tls` is the client's."""
        self._tls = tls
        self._folder, self._segments, self._bootstrap, self._more = folder, segments, bootstrap, more
        self.url = ""
        """Of the present life."""
        self.port = 0
        """Of the next life; 0: any."""

    @contextmanager
    def life(
        self, dies_at: str | None = None, bootstrap: str | None = None
    ) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
        """One process, killed with -9 at the end of the block unless it has ended by then.

        `dies_at`: a point of `tests.controller.operations.crash_points`; `bootstrap`: another Kafka for this life.
        """
        settings = self._folder / "more.toml"
        settings.write_text(
            f'[kafka]\nbootstrap = "{bootstrap or self._bootstrap}"\n'
            f'[controller]\nport = {self.port}\ndatabase = "{self._folder / "layouts.db"}"\n'
            f'segments = "{self._segments}"\n{self._more}\n'
        )
        dying = "tests.controller.operations.dying_controller"
        module = ["anabranch"] if dies_at is None else [dying, dies_at]
        command = [sys.executable, "-m", *module, "--home", str(ROOT), "-c", str(settings), "controller"]
        with (
            open(self._folder / "controller.log", "a") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT) as process,
        ):
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith(f"controller ready at {'https' if self._tls else 'http'}://127.0.0.1:"), Path(
                    log.name
                ).read_text()
                self.url = line.split()[-1]
                with httpx.Client(base_url=self.url, timeout=60, verify=self._tls or PLAIN) as client:
                    yield client, process
            except BaseException:
                print(Path(log.name).read_text()[-5_000:])
                raise
            finally:
                process.kill()

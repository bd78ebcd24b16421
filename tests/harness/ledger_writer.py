"""Writer and reader of ledgers: a Java program without any part of the product.

Stage: on `anabranch.local.bookies.programs`, which compiles it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch.local.bookies.programs import BookKeeperPrograms
from anabranch.local.processes import tethered
from schemas.settings.root import without_secrets


class LedgerWriter:
    """Writes ledgers into clusters, as Pulsar writes those of its schemas and cursors."""

    def __init__(self, programs: BookKeeperPrograms, folder: Path) -> None:
        with open(Path(folder) / "ledger-writer.log", "ab") as log:
            self._process = subprocess.Popen(
                tethered(programs.writer(Path(folder))),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=without_secrets(os.environ),
                text=True,
            )

    def write(
        self,
        uri: str,
        count: int = 1,
        ledger: int = -1,
        entries: int = 3,
        size: int = 200,
        seed: int = 1,
        quorum: int = 1,
        custom: Mapping[str, str] | None = None,
        leave_open: bool = False,
    ) -> list[int]:
        """Write `count` ledgers of `entries` entries of `size` bytes and return their ids.

        With `ledger` -1 the cluster chooses the ids. Raises `RuntimeError` if the program reports an error.
        """
        request = {
            "uri": uri,
            "count": count,
            "ledger": ledger,
            "entries": entries,
            "bytes": size,
            "seed": seed,
            "quorum": quorum,
            "custom": dict(custom or {}),
            "open": leave_open,
        }
        return [int(written) for written in self._ask(request)["ledgers"]]

    def read(self, uri: str, ledger: int) -> tuple[int, int]:
        """Read every entry of a ledger; return their number and a checksum. Raises `RuntimeError`."""
        answer = self._ask({"uri": uri, "read": ledger})
        return answer["entries"], answer["checksum"]

    def _ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        """End the program; ledgers that it left open stay open."""
        self._process.kill()
        self._process.communicate()

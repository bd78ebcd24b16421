"""A local run in a folder of its own, as a process; what tests do to it, and what they read from it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from anabranch.local.processes import session_members
from lake.tables import OpenTables
from schemas.tables.rows import TABLES
from tests.waiting import wait_until

HOME = Path(__file__).resolve().parents[2]


class Run:
    """A run in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        *more: str,
        on_terminal: bool = False,
        settings: str = "",
        base: str = "demonstration",
        lake: str = "",
    ) -> None:
        """`more`: options of `anabranch run --local`; `settings`: TOML behind the folder's own, `base` before.

        `lake`: of an object store; the folder's own without.
        """
        self.folder, self.lake = folder, lake or f"{folder}/lake"
        self._tables = OpenTables(self.lake)
        overlay = folder / "overlay.toml"
        overlay.write_text(
            f'[lake]\npath = "{self.lake}"\n[stream]\ncheckpoint = "{folder}/checkpoints/stream"\n'
            f'[controller]\ndatabase = "{folder}/controller.db"\n[local]\nfolder = "{folder}"\n'
            f'[collect]\nfolder = "{folder}/collect"\n{settings}'
        )
        arguments = ["--config", f"conf/{base}.toml", "--config", str(overlay), "run", "--local", *more]
        self.report = folder / "report.json"
        command = [sys.executable, "-m", "anabranch", *arguments]
        if on_terminal:
            ours, its = pty.openpty()
            self.process = subprocess.Popen(command, cwd=HOME, stdin=subprocess.DEVNULL, stdout=its, stderr=its)
            os.close(its)
            threading.Thread(target=self._keep_output, args=(ours,), daemon=True).start()
            return
        with open(folder / "out.log", "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--no-screen", "--report", str(self.report)],
                cwd=HOME,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _keep_output(self, terminal: int) -> None:
        """Copy what comes to a terminal, until nobody has it open any more."""
        with open(self.folder / "out.log", "ab", buffering=0) as log, suppress(OSError):
            while said := os.read(terminal, 65_536):
                log.write(said)
        os.close(terminal)

    @property
    def output(self) -> str:
        """Its output so far."""
        return (self.folder / "out.log").read_text(errors="replace")

    def sessions(self) -> dict[str, int]:
        """Session id of each running part."""
        try:
            return {
                entry["part"]: entry["session"] for entry in json.loads((self.folder / "processes.json").read_text())
            }
        except OSError:
            return {}

    def rows(self, table: str, *columns: str) -> list[dict]:
        newest = self._tables.newest(TABLES[table])
        return [] if newest is None else newest.to_pyarrow_table(columns=list(columns)).to_pylist()

    def count(self, table: str) -> int:
        """Return the number of a table's rows, by its log."""
        newest = self._tables.newest(TABLES[table])
        return 0 if newest is None else sum(pa.table(newest.get_add_actions())["num_records"].to_pylist())

    def endpoints(self) -> tuple[str, str]:
        """Return Kafka's bootstrap and the controller's URL."""
        values = dict(
            line.split(" = ") for line in (self.folder / "run.toml").read_text().splitlines() if " = " in line
        )
        return values["bootstrap"].strip('"'), values["url"].strip('"')

    def kill(self, part: str, program: str = "") -> None:
        """Send SIGKILL to all processes of a part, or only to those that run `program`."""
        for pid in session_members(self.sessions()[part]):
            # Some end with those that were killed before them.
            with suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/comm").read_text().startswith(program):
                    os.kill(pid, signal.SIGKILL)

    def wait_for_progress(self, parts: Iterable[str]) -> None:
        """Wait until the parts run, and batches and outcomes are written again."""
        batches, outcomes = self.count("batches"), self.count("outcomes")
        for part in parts:
            wait_until(lambda part=part: part in self.sessions() and session_members(self.sessions()[part]), 60, 0.1)
        wait_until(lambda: self.count("batches") > batches + 2, 240, 0.5)
        wait_until(lambda: self.count("outcomes") > outcomes + 1, 240, 0.5)


def end(one: Run) -> None:
    """End what a failed test has left."""
    if one.process.poll() is None:
        one.process.kill()
        one.process.wait()
    for session in one.sessions().values():
        for pid in session_members(session):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def applied_ids(run: Run) -> set[str]:
    """Decisions that were applied so far."""
    return {row["decision_id"] for row in run.rows("outcomes", "decision_id", "status") if row["status"] == "applied"}


def applied_kinds(run: Run) -> set[str]:
    """Kinds of decisions that were applied so far: `merge`, `consumers`, `load`."""
    applied, kinds = applied_ids(run), set()
    for row in run.rows("decisions", "decision_id", "action", "reason"):
        if row["decision_id"] in applied:
            kinds.add("merge" if row["action"] == "merge" else "consumers" if "consumer" in row["reason"] else "load")
    return kinds


def superseded_by_others(lake: Path) -> list[dict]:
    """Decisions that ended as superseded, but for those that gave way to another decision of ours."""
    columns = ["decision_id", "subject", "action", "arguments", "decided_at"]
    decisions = DeltaTable(str(lake / "decisions")).to_pyarrow_table(columns=columns).to_pylist()
    outcomes = DeltaTable(str(lake / "outcomes")).to_pyarrow_table(columns=["decision_id", "status", "at"]).to_pylist()
    ends = {row["decision_id"]: row["at"] for row in outcomes if row["status"] == "superseded"}
    begun = {row["decision_id"]: row["at"] for row in outcomes if row["status"] == "intent"}
    applied = {row["decision_id"] for row in outcomes if row["status"] == "applied"} & begun.keys()
    ours = [row for row in decisions if row["decision_id"] in applied]
    return [
        row
        for row in decisions
        if row["decision_id"] in ends
        and not any(
            _share_segments(row, other) and begun[other["decision_id"]] < ends[row["decision_id"]] for other in ours
        )
        and not made_way(row, ends[row["decision_id"]], decisions)
    ]


def made_way(decision: dict, ended_at: datetime, decisions: list[dict]) -> bool:
    """Return True for a merge that ended after the split of one of its segments was decided: it makes way for that."""
    return decision["action"] == "merge" and any(
        later["action"] == "split"
        and decision["decided_at"] < later["decided_at"] <= ended_at
        and _share_segments(decision, later)
        for later in decisions
    )


def _share_segments(one: dict, other: dict) -> bool:
    segments = [set(json.loads(decision["arguments"])["segments"]) for decision in (one, other)]
    return one["subject"] == other["subject"] and not segments[0].isdisjoint(segments[1])

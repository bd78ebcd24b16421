"""`python -m tests.harness.chaos.kills --kills 100 [--seed 1]`: kill -9 of executor and job while decisions are open.

Runs the whole local system on a demand that asks for several decisions per tick. Each kill waits until the lake shows
a new batch since the last kill and at least two decisions without an end. After the last kill the system comes to rest,
and the lake must show that each applied decision changed its topic exactly once, that no change lacks its outcome, and
that the job has recorded the end of every decision. The exit code is 1 when a rule is broken, and the
folder of the run is kept.
With `--part stream --lost 2` the job is killed alone, and loses its checkpoint twice, which is rebuilt from the lake.
With `--faulty-store` the lake is in an object store behind the proxy of `tests.harness.faulty_store`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from anabranch.local.processes import session_members
from tests.harness.faulty_store import fault_counts, faulty_store
from tests.local.running import HOME, Run, end
from tests.waiting import wait_until

PARTS = ("executor", "job")
SETTINGS = '[traffic]\ntopics = 12\npeak_msg_rate_in = 60000\n[executor]\nmode = "act"\nworkers = 2\n'
ENVIRONMENT = {"ANABRANCH_STREAM__TICK_SECONDS": "5"}
AS_THE_CHART = "poll_ms = 5000\nlease_seconds = 75\n"
"""Settings of `[executor]` for a lake in an object store."""
FINAL = {"applied", "superseded", "rejected", "failed", "observed"}
CHANGES = {"split", "merge", "rebucket"}
WAIT_FOR_BATCH_S = 900.0
"""Longest wait for a batch that the job commits after a kill."""
WAIT_FOR_OPEN_S = 90.0
"""Longest wait for open decisions; without them the kill comes anyway."""
REST_S = 300.0
SETTLED_S = 20.0
"""A younger decision may be under way when the run is judged."""


@dataclass
class Kills:
    """Kills of a run: the part of each, and the number of decisions that were open."""

    by_part: Counter[str] = field(default_factory=Counter)
    opened: list[int] = field(default_factory=list)

    @property
    def with_several_open(self) -> int:
        """Number of kills with at least two open decisions."""
        return sum(count > 1 for count in self.opened)


def open_decisions(run: Run) -> set[str]:
    """Return the decisions on record without an end."""
    ended = {row["decision_id"] for row in run.rows("outcomes", "decision_id", "status") if row["status"] in FINAL}
    return {row["decision_id"] for row in run.rows("decisions", "decision_id")} - ended


def committed_batches(run: Run) -> set[tuple[str, int]]:
    """Return generation and number of the batches on record."""
    return {(row["generation"], row["batch_id"]) for row in run.rows("batches", "generation", "batch_id")}


def wait_for_batch(run: Run) -> None:
    """Wait for a new batch: a job that is killed before its first one tries nothing but its own start."""
    before = committed_batches(run)
    wait_until(lambda: committed_batches(run) - before, WAIT_FOR_BATCH_S, 0.5)


def unheard_decisions(run: Run) -> set[str]:
    """Return the decisions older than `SETTLED_S` whose end the job has not recorded."""
    until = time.time() - SETTLED_S
    recorded = {row["decision_id"] for row in run.rows("events", "decision_id", "type") if row["type"] == "outcome"}
    decided = run.rows("decisions", "decision_id", "decided_at")
    return {row["decision_id"] for row in decided if row["decided_at"].timestamp() < until} - recorded


def kill_parts(run: Run, count: int, choices: random.Random, parts: Sequence[str] = PARTS, lost: int = 0) -> Kills:
    """Kill parts `count` times in all, at random moments with open decisions.

    After `lost` of the kills, in equal steps, the job's checkpoint is lost as well.
    """
    kills = Kills()
    losses = {count * (number + 1) // (lost + 1) for number in range(lost)}
    for number in range(count):
        part = choices.choice(parts)
        wait_for_batch(run)
        time.sleep(choices.uniform(0.0, 5.0))
        deadline = time.monotonic() + WAIT_FOR_OPEN_S
        while len(opened := open_decisions(run)) < 2 and time.monotonic() < deadline:
            time.sleep(choices.uniform(0.02, 0.3))
        wait_until(lambda part=part: _runs(run, part), 600, 0.1)
        if number in losses:
            lose_checkpoint(run)
        else:
            run.kill(part)
        kills.by_part[part] += 1
        kills.opened.append(len(opened))
        click.echo(f"{time.strftime('%H:%M:%S')} {number + 1} kills, {kills.with_several_open} with several open")
    return kills


def lose_checkpoint(run: Run) -> None:
    """Kill the job, delete its checkpoint, and rebuild it before the supervisor starts the job again."""
    run.process.send_signal(signal.SIGSTOP)
    try:
        run.kill("job")
        shutil.rmtree(run.folder / "checkpoints" / "stream")
        done = anabranch(run.folder, "lake", "state", "rebuild")
        assert done.returncode == 0, done.stdout + done.stderr
        click.echo(f"{time.strftime('%H:%M:%S')} checkpoint lost and rebuilt: {done.stdout.strip()}")
    finally:
        run.process.send_signal(signal.SIGCONT)


def _runs(run: Run, part: str) -> bool:
    session = run.sessions().get(part)
    return session is not None and bool(session_members(session))


def broken_rules(
    decisions: Sequence[dict[str, Any]], outcomes: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]
) -> list[str]:
    """Return what the rows show of decisions that were applied twice, without a record, or not at all. Pure."""
    ends: dict[str, list[str]] = defaultdict(list)
    for row in outcomes:
        if row["status"] in FINAL:
            ends[row["decision_id"]].append(row["status"])
    layouts: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for row in events:
        if row["type"] == "layout" and row["cause"] in CHANGES and row["decision_id"]:
            layouts[row["decision_id"]].add((row["subject"], row["epoch"]))
    decided = {row["decision_id"] for row in decisions}
    applied = {identity for identity, statuses in ends.items() if "applied" in statuses}
    return [
        *(f"{identity} ended {len(statuses)} times: {statuses}" for identity, statuses in ends.items() if statuses[1:]),
        *(f"{identity} changed layouts {sorted(seen)}" for identity, seen in layouts.items() if len(seen) > 1),
        *(f"{identity} was applied, and no layout shows it" for identity in applied - layouts.keys()),
        *(f"{identity} changed a layout and ended as {ends[identity]}" for identity in layouts.keys() - applied),
        *(f"{identity} changed a layout and was never decided" for identity in layouts.keys() - decided),
    ]


def run_kills(
    folder: Path, count: int, seed: int, parts: Sequence[str] = PARTS, lost: int = 0, remote: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Run the system in a folder under `count` kills; return the broken rules and what happened.

    `remote`: the lake is where this process's variables lead.
    """
    os.environ.update(ENVIRONMENT)
    settings, lake = (SETTINGS + AS_THE_CHART, "s3://bucket/lake") if remote else (SETTINGS, "")
    run = Run(folder, "--without", "page", settings=settings, lake=lake)
    try:
        wait_until(lambda: len(run.rows("outcomes", "status")) > 10, 1200, 0.5)
        kills = kill_parts(run, count, random.Random(seed), parts, lost)
        unheard: set[str] = set()

        def at_rest() -> bool:
            unheard.clear()
            unheard.update(unheard_decisions(run))
            return not unheard

        deadline = time.monotonic() + REST_S
        time.sleep(SETTLED_S)
        while not at_rest() and time.monotonic() < deadline:
            time.sleep(1.0)
        run.process.send_signal(signal.SIGTERM)
        exit_code = run.process.wait(600)
    finally:
        end(run)
    decisions = run.rows("decisions", "decision_id")
    outcomes = run.rows("outcomes", "decision_id", "status")
    broken = broken_rules(decisions, outcomes, run.rows("events", "decision_id", "type", "cause", "subject", "epoch"))
    batches = Counter((row["generation"], row["batch_id"]) for row in run.rows("batches", "generation", "batch_id"))
    broken += [f"batch {batch} is in the lake {times} times" for batch, times in batches.items() if times > 1]
    broken += [f"{identity} is still in flight" for identity in sorted(unheard)]
    integrity = json.loads(run.report.read_text())["integrity"] if run.report.is_file() else {"ok": False}
    broken += [] if integrity["ok"] else [f"integrity: {json.dumps(integrity)[:1000]}"]
    broken += [] if exit_code == 0 else [f"the run ended with exit code {exit_code}"]
    broken += _check_lake(folder)
    ended = Counter(row["status"] for row in outcomes if row["status"] in FINAL)
    seen = {
        "kills": dict(kills.by_part),
        "with several open": kills.with_several_open,
        "most open": max(kills.opened, default=0),
        "batches": len(batches),
        "decisions": len(decisions),
        "ended": dict(ended),
    }
    return broken, seen


def anabranch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the settings of the run in a folder."""
    files = ("conf/demonstration.toml", str(folder / "overlay.toml"), str(folder / "run.toml"))
    command = [sys.executable, "-m", "anabranch", *(word for file in files for word in ("--config", file)), *arguments]
    return subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=900, check=False)


def _check_lake(folder: Path) -> list[str]:
    """Return the findings of `anabranch lake check` and the differences of `anabranch replay`."""
    broken = []
    for arguments in (("lake", "check"), ("decisions", "replay")):
        done = anabranch(folder, *arguments)
        if done.returncode:
            broken.append(f"{' '.join(arguments)}: {(done.stdout + done.stderr)[-1500:]}")
    return broken


@click.command()
@click.option("--kills", type=click.IntRange(1), default=100, show_default=True, help="Of executor and job together.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of parts and moments.")
@click.option("--part", type=click.Choice(PARTS), help="Of this part alone.")
@click.option("--lost", type=click.IntRange(0), default=0, show_default=True, help="Losses of the job's checkpoint.")
@click.option("--faulty-store", "remote", is_flag=True, help="The lake is in an object store behind a faulty network.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep the run here.")
def main(kills: int, seed: int, part: str | None, lost: int, remote: bool, folder: Path | None) -> None:
    """Kill executor and job while decisions are open, and judge the lake."""
    kept = (folder or Path(tempfile.mkdtemp(prefix="anabranch-kills-"))).resolve()
    kept.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if remote:
            _, proxy = stack.enter_context(faulty_store(seed))
            os.environ["AWS_ENDPOINT_URL"] = proxy
        broken, seen = run_kills(kept, kills, seed, (part,) if part else PARTS, lost, remote)
        if remote:
            seen["requests"] = fault_counts(proxy)
    for line in broken[:100]:
        click.echo(f"BROKEN {line}")
    click.echo(json.dumps(seen))
    click.echo(f"{len(broken)} rules broken; the run is in {kept}" if broken or folder else "nothing found")
    if broken:
        sys.exit(1)
    if folder is None:
        shutil.rmtree(kept)


if __name__ == "__main__":
    main()

"""Real runs of the whole system under each of two policies on one seeded demand, and what was predicted of them.

`run_both` makes the two runs at the same time, each in a folder of its own: so they have the same machine, and their
actions the same delays. `judged` compares them in both directions. Used by tests/local/test_reality.py, and for longer
runs by `benchmarks.reality`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from anabranch.local.demand import demands
from anabranch.local.sliced import LabDemand
from anabranch.local.traffic import COUNTERS_FILE
from anabranch.simulation.backtest.reading import open_history
from anabranch.simulation.backtest.running import RAN, backtest, resolved
from anabranch.simulation.topics.from_lake import lines_of_lake
from anabranch.simulation.topics.recorded import RecordedDemand
from anabranch.simulation.topics.run import simulate
from anabranch.simulation.topics.timeline import Source
from decisions.autoscale.policy import read_policy
from engine.autoscale.topics import ConfiguredPolicy
from schemas.settings.root import Settings, load_settings
from tests.harness.raw_rows import counts_of, first_heard, lag_seconds, minutes_over, outcomes_of

HOME = Path(__file__).resolve().parents[2]
POLICIES = {
    # Clocks that give thirty minutes some hundred actions, all at ticks: `shapes_live` has decisions between them.
    "A": 'splitCooldownSeconds = "20s"\nmergeCooldownSeconds = "40s"\nmergeWindowSeconds = "30s"\n'
    "promptSplits = false\n",
    "B": 'splitCooldownSeconds = "20s"\nmergeCooldownSeconds = "80s"\nmergeWindowSeconds = "80s"\n'
    "splitMsgRateInThreshold = 8000\npromptSplits = false\n",
}
COUNTS = ("splits", "merges", "segmentHours", "minutesOverThreshold")
TRAFFIC = {
    "report_seconds": 1,
    "peak_msg_rate_in": 40_000,
    "wave_seconds": 600,
    "burst_seconds": 240,
    "max_consumers": 6,
    "consumer_seconds": 60,
}
MORE_SECONDS = 30
"""A run's traffic begins some seconds after it, and what is compared has to be whole."""


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    name: str
    settings: Settings
    policy: ConfiguredPolicy
    began_at: int
    """The demand's beginning."""
    ends_at: int

    @property
    def lake(self) -> str:
        """Its lake."""
        return self.settings.lake_path


def run_both(folder: Path, minutes: float, topics: int, seed: int) -> None:
    """Run the whole system under each policy at the same time; raises `SystemExit` as `run_for`."""
    with ThreadPoolExecutor(len(POLICIES)) as pool:
        runs = [pool.submit(run_for, name, folder / name, minutes, topics, seed) for name in POLICIES]
    for run in runs:
        run.result()


def run_for(name: str, folder: Path, minutes: float, topics: int, seed: int) -> Ran:
    """Run the whole system under a policy; raises `SystemExit` with the end of its output when it fails."""
    folder.mkdir(parents=True)
    demonstration = (HOME / "conf" / "policies" / "demonstration.toml").read_text()
    changed = {line.partition(" ")[0] for line in POLICIES[name].splitlines()}
    lines = [line for line in demonstration.splitlines() if line.partition(" ")[0] not in changed]
    (folder / "policy.toml").write_text("\n".join(lines) + "\n" + POLICIES[name])
    traffic = {"seed": seed, "topics": topics, "from_start": True, **TRAFFIC}
    (folder / "overlay.toml").write_text(
        f'[lake]\npath = "{folder}/lake"\n[stream]\ncheckpoint = "{folder}/checkpoint"\n'
        f'[controller]\ndatabase = "{folder}/controller.db"\n[local]\nfolder = "{folder}"\n'
        f'[policy]\ncluster = "{folder}/policy.toml"\n[traffic]\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in traffic.items())
    )
    configured = [str(HOME / "conf" / "demonstration.toml"), str(folder / "overlay.toml")]
    command = [
        sys.executable,
        "-m",
        "anabranch",
        *(word for file in configured for word in ("--config", file)),
        "run",
        "--local",
        "--no-screen",
        "--without",
        "page",
        "--for",
        f"{round(minutes * 60) + MORE_SECONDS}s",
        "--report",
        str(folder / "report.json"),
    ]
    with open(folder / "out.log", "w") as log:
        code = subprocess.run(
            command, cwd=HOME, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        ).returncode
    if code:
        raise SystemExit(f"the run under policy {name} failed:\n{(folder / 'out.log').read_text()[-3000:]}")
    (folder / "minutes").write_text(str(minutes))
    return read_run(name, folder)


def read_run(name: str, folder: Path) -> Ran:
    """Return a run that is in a folder."""
    files = [HOME / "conf" / "demonstration.toml", folder / "overlay.toml"]
    settings = load_settings(files, HOME, {})
    policy = ConfiguredPolicy("default", read_policy((folder / "policy.toml").read_text()).to_json())
    began_at = round(json.loads((folder / COUNTERS_FILE).read_text())["origin"] * 1000)
    minutes = float((folder / "minutes").read_text())
    return Ran(name, settings, policy, began_at, began_at + round(minutes * 60_000))


def compare(ran: Ran, other: Ran, folder: Path) -> dict[str, Any]:
    """Predict what `other` did from the record of `ran`, and add up what it really did."""
    limits = resolved(ran.policy).split_thresholds
    begin, end = (
        datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=instant)
        for instant in (ran.began_at, ran.ends_at)
    )
    stream = ran.settings.stream
    tick_ms = round(stream.tick_seconds * 1000)
    folder.mkdir(parents=True, exist_ok=True)
    history = open_history(
        ran.lake, folder, begin, end, None, ran.policy, tick_ms, change_threshold=stream.change_threshold
    )
    predicted = backtest(history, {other.name: other.policy})
    on_record = RecordedDemand(*lines_of_lake(ran.lake, begin, until=end), step_ms=history.step_ms)
    # A job that starts beside others hears of the demand seconds after it began, and acts on nothing before.
    step = history.step_ms
    heard_at = other.began_at + (first_heard(other.lake) - other.began_at) // step * step
    seeded = LabDemand(ran.settings.traffic, (other.ends_at - heard_at) / 3_600_000, heard_at, step, other.began_at)

    def simulated(source: Source) -> dict[str, float]:
        outcome = simulate(
            source,
            {other.name: other.policy},
            yardstick=ran.policy,
            tick_ms=tick_ms,
            change_threshold=stream.change_threshold,
            delay_ms=history.delay_ms,
        )[other.name]
        return {name: float(outcome.to_json()[name]) for name in COUNTS}

    return {
        "record": ran.name,
        "policy": other.name,
        "before": really(ran, limits),
        "real": really(other, limits),
        "predicted": {
            "backtest": _counts(predicted.totals(other.name)),
            "simulate, demand on record": simulated(on_record),
            "simulate, seeded demand": simulated(seeded),
        },
        "delaySeconds": history.delay_ms / 1000,
        "confidence": round(predicted.confidence(other.name).confidence, 3),
        "itself": {"predicted": _counts(predicted.totals(RAN)), **predicted.agreement.to_json()},
    }


def really(ran: Ran, limits: Sequence[float]) -> dict[str, float]:
    """Return the actual figures of a run: actions and layouts from its rows, minutes over from the demand."""
    wanted = demands(ran.settings.traffic, ran.began_at / 1000)
    over = minutes_over(ran.lake, ran.began_at, ran.ends_at, limits, wanted)
    return counts_of(ran.lake, ran.began_at, ran.ends_at, limits) | {"minutesOverThreshold": over}


def judged(folder: Path) -> dict[str, Any]:
    """Compare the two runs in a folder, in both directions."""
    runs = {name: read_run(name, folder / name) for name in POLICIES}
    traffic = runs["A"].settings.traffic
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "minutes": round((runs["A"].ends_at - runs["A"].began_at) / 60_000, 1),
        "topics": traffic.topics,
        "seed": traffic.seed,
        "comparisons": [
            compare(runs[ran], runs[other], folder / f"loads-{ran}") for ran, other in (("A", "B"), ("B", "A"))
        ],
        "outcomes": {name: outcomes_of(run.lake) for name, run in runs.items()},
        "lagSeconds": {name: round(lag_seconds(run.lake), 2) for name, run in runs.items()},
    }


def _counts(totals: Mapping[str, float]) -> dict[str, float]:
    return {name: totals[name] for name in COUNTS}

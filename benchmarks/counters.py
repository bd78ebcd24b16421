"""Real Pulsar counters, segment by segment, against the collector's samples and the lake's loads.

`python -m benchmarks.counters [--minutes 10] [--quick]`: a local run with a Pulsar whose client's load rises and falls;
nobody acts but this program, which splits the busiest segment twice. The broker counts messages and bytes of a segment
(`pulsar_in_messages_total` and so on in its `/metrics/`). Samples are rates, so each is taken to hold until the next:
`samples` are all that are in Kafka, `lake` those that `segment_load` has, which moved by more than the band.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import httpx
from confluent_kafka import Consumer

from anabranch.local.pulsar.traffic import TOPIC
from benchmarks.record import machine_now, publish
from lake.tables import read_columns
from schemas.kafka.connection import KafkaConnection
from schemas.kafka.messages import SegmentStatsColumns, parse_message
from schemas.kafka.topics import SEGMENT_STATS
from schemas.tables.rows import SEGMENT_LOAD

KINDS = ("messages in", "bytes in", "messages out", "bytes out")
_LINE = re.compile(
    r'pulsar_(in|out)_(messages|bytes)_total\{[^}]*topic="segment://[^"]+-(\d+)"[^}]*\} ([\d.E+-]+)', re.MULTILINE
)
_KIND = {("in", "messages"): 0, ("in", "bytes"): 1, ("out", "messages"): 2, ("out", "bytes"): 3}
Steps = Sequence[tuple[float, Sequence[float]]]
"""Instants in seconds, ascending, and four rates a second that hold from then on."""


class Watched:
    """Broker counters read so far."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=10)
        self._path = f"/admin/v2/scalable/{TOPIC.removeprefix('topic://')}"
        self.totals: dict[int, list[float]] = defaultdict(lambda: [0.0] * 4)
        """By segment, the four counters; they are gone with the segment."""
        self.lives: dict[int, tuple[float, float | None]] = {}
        """By segment: from when until when it was active, seconds."""
        self._before: dict[int, float] = {}

    def look(self) -> None:
        """One look at layout and counters."""
        layout = self._client.get(self._path).json()["segments"]
        for id, (created_at, until) in self.lives.items():
            if until is None and str(id) not in layout:  # sealed and pruned since the last look
                self.lives[id] = created_at, time.time()
        for segment in layout.values():
            until = segment["sealedAtMs"] / 1000 if segment["state"] == "SEALED" else None
            self.lives[segment["segmentId"]] = segment["createdAtMs"] / 1000, until
        for way, unit, segment, value in _LINE.findall(self._client.get("/metrics/").text):
            kind = _KIND[way, unit]
            self.totals[int(segment)][kind] = max(self.totals[int(segment)][kind], float(value))

    def split_busiest(self) -> int:
        """Splits the active segment that has most messages lately; answers its id."""
        active = [id for id, (_, until) in self.lives.items() if until is None]
        busiest = max(active, key=lambda id: self.totals[id][0] - self._before.get(id, 0.0))
        self._before = {id: total[0] for id, total in self.totals.items()}
        self._client.post(f"{self._path}/split/{busiest}", timeout=30).raise_for_status()
        return busiest


def sampled(kafka: KafkaConnection, until: float) -> dict[int, Steps]:
    """Every sample up to an instant that is in Kafka, by segment; more come meanwhile."""
    consumer = Consumer(kafka.librdkafka({"group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"}))
    consumer.subscribe([SEGMENT_STATS.name])
    by_segment: dict[int, dict[float, Sequence[float]]] = defaultdict(dict)
    quiet_at = time.monotonic() + 20
    while time.monotonic() < quiet_at:
        for record in consumer.consume(1_000, 1.0):
            if record.error():
                continue
            message = parse_message("segment-stats", record.key(), record.value())
            assert isinstance(message, SegmentStatsColumns), message
            if message.sampled_at / 1000 > until:
                continue
            quiet_at = time.monotonic() + 3
            rates = zip(message.ids, *message.rates, strict=True)
            for id, *four in rates:
                by_segment[id][message.sampled_at / 1000] = four
    consumer.close()
    return {id: sorted(steps.items()) for id, steps in by_segment.items()}


def accepted(lake: str) -> dict[int, Steps]:
    """Return the loads in `segment_load`, by segment."""
    names = ("segment_id", "sampled_at", "msg_rate_in", "bytes_rate_in", "msg_rate_out", "bytes_rate_out")
    by_segment: dict[int, dict[float, Sequence[float]]] = defaultdict(dict)
    for row in read_columns(lake, SEGMENT_LOAD, names).to_pylist():
        by_segment[row["segment_id"]][row["sampled_at"].timestamp()] = [row[name] for name in names[2:]]
    return {id: sorted(steps.items()) for id, steps in by_segment.items()}


def integral(steps: Steps, until: float) -> list[float]:
    """Rates times the time that each holds, up to an instant."""
    ends = [instant for instant, _ in steps[1:]] + [until] * bool(steps)
    return [
        sum(
            max(0.0, min(end, until) - instant) * rates[kind] for (instant, rates), end in zip(steps, ends, strict=True)
        )
        for kind in range(4)
    ]


def widest_gap(steps: Steps, in_lake: Steps) -> float:
    """Return the largest relative difference between a sample and the lake's value at the same instant."""
    instants, widest = [instant for instant, _ in in_lake], 0.0
    for instant, rates in steps:
        index = bisect_right(instants, instant) - 1
        if index >= 0 and in_lake[index][1][0] > 0:
            widest = max(widest, abs(rates[0] - in_lake[index][1][0]) / in_lake[index][1][0])
    return widest


def compare(
    watched: Watched, samples: dict[int, Steps], accepted_loads: dict[int, Steps], end: float
) -> list[dict[str, Any]]:
    """One row a segment."""
    rows = []
    for id, (created_at, until) in sorted(watched.lives.items()):
        steps, in_lake = samples.get(id, ()), accepted_loads.get(id, ())
        last = min(end, until or end)
        by_samples, by_lake = integral(steps, last), integral(in_lake, last)
        rows.append(
            {
                "segment": id,
                "seconds": round(last - created_at, 1),
                "samples": len(steps),
                "kept": len(in_lake),
                "firstSampleAfterSeconds": round(steps[0][0] - created_at, 2) if steps else None,
                "widestGap": round(widest_gap(steps, in_lake), 3),
                **{
                    kind: {
                        "broker": round(watched.totals[id][index]),
                        "samples": round(by_samples[index]),
                        "lake": round(by_lake[index]),
                    }
                    for index, kind in enumerate(KINDS)
                },
            }
        )
    return rows


@click.command()
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--quick", is_flag=True, help="A minute.")
def main(minutes: float, quick: bool) -> None:
    """Measures, prints a table and writes the JSON."""
    seconds = 60 if quick else minutes * 60
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        run = start(folder)
        try:
            publish("counters", measure(folder, run, seconds), quick)
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(180)


def start(folder: Path) -> subprocess.Popen[bytes]:
    """The local run in a folder of its own."""
    overlay = folder / "overlay.toml"
    overlay.write_text(
        f'[lake]\npath = "{folder}/lake"\n[stream]\ncheckpoint = "{folder}/checkpoint"\n'
        f'[local]\nfolder = "{folder}"\n[collect]\nfolder = "{folder}/collect"\n'
    )
    files = ("conf/demonstration.toml", "conf/demonstration-pulsar.toml", str(overlay))
    options = [word for file in files for word in ("--config", file)]
    words = [*options, "run", "--local", "--pulsar", "--no-screen", "--without", "executor"]
    return subprocess.Popen([sys.executable, "-m", "anabranch", *words], stdin=subprocess.DEVNULL)


def measure(folder: Path, run: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """Apply load for `seconds`, with a split after each third; read the results once the lake is complete."""
    while not (folder / "load.json").exists():
        if run.poll() is not None:
            sys.exit(f"the local run has ended; its logs said why in {folder}/log")
        time.sleep(0.5)
    values = dict(line.split(" = ") for line in (folder / "run.toml").read_text().splitlines() if " = " in line)
    watched = Watched(values["url"].strip('"'))
    began, splits = time.time(), []
    while (now := time.time() - began) < seconds:
        watched.look()
        if len(splits) < 2 and now > seconds * (len(splits) + 1) / 3:
            splits.append({"segment": watched.split_busiest(), "atSeconds": round(now, 1)})
        time.sleep(1)
    watched.look()
    end = time.time()
    samples = sampled(KafkaConnection(values["bootstrap"].strip('"')), end)
    in_lake = accepted(str(folder / "lake"))
    rows = compare(watched, samples, in_lake, end)
    every = {
        kind: {source: sum(row[kind][source] for row in rows) for source in ("broker", "samples", "lake")}
        for kind in KINDS
    }
    return {"machine": machine_now(), "seconds": round(end - began), "splits": splits, "segments": rows, "all": every}


if __name__ == "__main__":
    main()

"""What the job refuses to start on: nothing is written, and one line says what is wrong, where, and what to do."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
from deltalake import DeltaTable

from schemas.arrow import arrow_schema
from schemas.tables import DECISIONS
from tests.streaming.jobs import HOME


def test_a_lake_of_a_newer_release_is_refused_before_spark_starts(tmp_path):
    newer = arrow_schema(DECISIONS.row).append(pa.field("confidence", pa.float64()))
    (tmp_path / "lake" / "decisions").mkdir(parents=True)
    DeltaTable.create(str(tmp_path / "lake" / "decisions"), schema=newer, partition_by=["day"])
    file = tmp_path / "job.toml"
    file.write_text(f'[lake]\npath = "{tmp_path}/lake"\n[stream]\ncheckpoint = "{tmp_path}/checkpoint"\n')
    ended = subprocess.run(
        [sys.executable, "-m", "anabranch.cli", "--config", str(file), "stream"],
        cwd=HOME, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "columns that this release does not know: confidence" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "checkpoint").exists()

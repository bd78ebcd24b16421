"""The lake in Spark SQL: registered by the command, asked by the spark-sql that it names."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
from deltalake import write_deltalake

from anabranch.executor.shards.members import Member
from anabranch.executor.shards.register import MemberRegister
from lake.tables import create_lake
from runtime.java_home import archive_of
from schemas.settings.root import load_settings
from schemas.tables.arrow import to_arrow
from schemas.tables.rows import DEAD_LETTERS, TABLES, DeadLetterRow
from streaming.job.session import read_spark_conf
from streaming.sink.catalog import DATABASE, register_lake, spark_sql_command
from tests.local.lake import layout_event, layout_json, write

HOME = Path(__file__).resolve().parents[2]


def settings_file(folder: Path, lake: str) -> Path:
    """Settings with a lake, and a local folder for the metastore, under `folder`."""
    file = folder / f"{lake}.toml"
    file.write_text(f'[lake]\npath = "{folder / lake}"\n[local]\nfolder = "{folder / "var"}"\n')
    return file


def anabranch(file: Path, *arguments: str) -> str:
    """What a command prints; fails the test with the end of its output when it fails."""
    command = [sys.executable, "-m", "anabranch", "--home", str(HOME), "--config", str(file), *arguments]
    ran = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def dead_letter(reason: str, number: int = 0) -> DeadLetterRow:
    at = datetime.now(timezone.utc)
    return DeadLetterRow(
        reason=reason,
        detail="",
        key=None,
        raw=None,
        raw_size=-1,
        raw_sha256=None,
        kafka_topic="segment-stats",
        kafka_partition=0,
        kafka_offset=number,
        kafka_timestamp=at,
        rejected_at=at,
        batch_id=number,
        day=at.date(),
    )


def test_spark_sql_reads_lake_from_archive(tmp_path):
    """Spark SQL reads Delta tables and files as the job does."""
    (tmp_path / "jars").mkdir()
    file = tmp_path / "own.toml"
    file.write_text(f'[local]\njars = "{tmp_path}/jars"\n')
    settings = load_settings([file], HOME, {})
    assert not any("SharedArchiveFile" in part for part in spark_sql_command(settings))
    archive_of(settings.path(settings.local.jars) / "spark").touch()
    command, conf = spark_sql_command(settings), read_spark_conf(HOME / "conf" / "spark.conf")
    for key in (
        "spark.databricks.delta.snapshotPartitions",
        "spark.hadoop.fs.file.impl",
        "spark.hadoop.fs.AbstractFileSystem.file.impl",
    ):
        assert f"--conf={key}={conf[key]}" in command
    (options,) = (part for part in command if part.startswith("--conf=spark.driver.extraJavaOptions="))
    assert f" -XX:SharedArchiveFile={archive_of(settings.path(settings.local.jars) / 'spark')} " in options


@pytest.mark.spark
def test_session_jvm_loads_classes_from_archive(spark):
    jvm = spark.sparkContext._gateway.proc.pid
    assert "spark.jsa" in Path(f"/proc/{jvm}/maps").read_text()


@pytest.mark.spark
@pytest.mark.soak
def test_reregistered_names_follow_moved_lake(spark, tmp_path):
    register_lake(spark, f"{tmp_path}/old")
    MemberRegister(f"{tmp_path}/new").replace((Member("a:1", "act", 2, 20.0, datetime.now(timezone.utc)),))
    names = [*TABLES, "executors"]
    try:
        for _ in range(2):
            places = register_lake(spark, f"{tmp_path}/new")
        assert places == {name: f"file://{tmp_path}/new/{name}" for name in names}
        assert spark.sql(f"SELECT executor, shards FROM {DATABASE}.executors").collect() == [("a:1", 2)]
        for name in TABLES:
            known = spark.sql(f"DESCRIBE DETAIL {DATABASE}.{name}").first()["location"]
            assert known.startswith("file:")
            assert known.endswith(f"{tmp_path}/new/{name}")
            assert (tmp_path / "old" / name / "_delta_log").is_dir()
    finally:
        spark.sql(f"DROP DATABASE {DATABASE} CASCADE")


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_registered_lake_read_by_printed_command(tmp_path, jars):
    file = settings_file(tmp_path, "lake")
    said = anabranch(file, "lake", "register")
    rows = to_arrow(DEAD_LETTERS, [dead_letter("not-json"), dead_letter("no-value"), dead_letter("no-value")])
    write_deltalake(create_lake(load_settings([file], HOME).lake_path)["dead_letters"], rows, mode="append")
    write(str(tmp_path / "lake"), layout_event(layout_json((0, 0, 0xCAFE)), 0))
    command = shlex.split(said.rpartition("open it with: ")[2])
    question = "SELECT reason, count(*) FROM dead_letters GROUP BY reason ORDER BY reason; SHOW TABLES"
    question += "; SELECT hash_end FROM layout_at(current_timestamp())"
    quick_to_start = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    asked = subprocess.run(
        [*command, "-e", question],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=quick_to_start,
    )
    assert asked.returncode == 0, asked.stderr[-2000:]
    answered = asked.stdout.split()
    assert answered[:4] == ["no-value", "2", "not-json", "1"]
    assert {*TABLES, "thrash"} <= set(answered)
    assert answered[-1] == "51966"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "lake.toml", "var"]

"""The archives of JVM classes: made once, again for another JVM, and never needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from anabranch.local import archive
from anabranch.local.archive import ensure_archive
from runtime.java_home import archive_of
from schemas.settings.root import load_settings


@pytest.fixture
def settings(tmp_path):
    here = load_settings(environment={})
    return here.model_copy(update={"local": here.local.model_copy(update={"jars": str(tmp_path)})})


def spark_archive(settings):
    return archive_of(settings.path(settings.local.jars) / "spark")


def writes_archive(command, **_):
    Path(command[-1]).write_text("classes")


def test_archive_remade_for_other_jvm_or_jars(settings, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(archive, "_made_from", lambda _: "one JVM")
    monkeypatch.setattr(archive, "_run", writes_archive)
    for _ in range(2):
        ensure_archive(settings, "spark", said.append)
    assert spark_archive(settings).read_text() == "classes"
    assert len(said) == 1
    monkeypatch.setattr(archive, "_made_from", lambda _: "another JVM")
    ensure_archive(settings, "spark", said.append)
    assert len(said) == 2


def test_jars_of_others_are_left_alone(settings, monkeypatch):
    """As in an image, where no lock can be made beside the jars. Tests may run as root, who may write everywhere."""
    said: list[str] = []
    monkeypatch.setattr(archive, "_made_from", lambda _: "one JVM")
    monkeypatch.setattr(archive, "_run", writes_archive)
    with monkeypatch.context() as read_only:
        read_only.setattr(archive.os, "access", lambda folder, _: folder != spark_archive(settings).parent)
        ensure_archive(settings, "spark", said.append)
    assert not list(spark_archive(settings).parent.iterdir())
    ensure_archive(settings, "spark", said.append)
    assert len(said) == 1


def test_archive_attempted_once_and_foreign_removed(settings, monkeypatch):
    said: list[str] = []
    spark_archive(settings).write_text("of another JVM")
    monkeypatch.setattr(archive, "_made_from", lambda _: "one JVM")
    monkeypatch.setattr(archive, "_run", lambda *_, **__: None)
    for _ in range(2):
        ensure_archive(settings, "spark", said.append)
    assert not spark_archive(settings).exists()
    assert said[1:] == ["no archive was made: starts stay as they are"]


def test_after_time_limit_the_next_start_tries_again(settings, monkeypatch):
    def is_slow(command, **_):
        writes_archive(command)
        raise subprocess.TimeoutExpired(command, 300)

    monkeypatch.setattr(archive, "_made_from", lambda _: "one JVM")
    monkeypatch.setattr(archive.subprocess, "run", is_slow)
    ensure_archive(settings, "spark", lambda _: None)
    assert not spark_archive(settings).with_suffix(".from").exists()
    assert not spark_archive(settings).exists(), "what is cut off is no archive"


def test_after_ctrl_c_the_next_start_tries_again(settings, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(archive, "_made_from", lambda _: "one JVM")
    monkeypatch.setattr(archive, "_run", lambda *_, **__: True)
    for _ in range(2):
        ensure_archive(settings, "spark", said.append)
    assert len(said) == 2
    assert not spark_archive(settings).with_suffix(".from").exists()


@pytest.mark.broker
def test_kafka_runs_from_its_archive(broker):
    assert "kafka.jsa" in Path(f"/proc/{broker.process.pid}/maps").read_text()


@pytest.mark.pulsar
def test_pulsar_runs_from_its_archive(pulsar):
    assert "pulsar.jsa" in Path(f"/proc/{pulsar.process.pid}/maps").read_text()

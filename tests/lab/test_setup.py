"""The jars and what they need: closed lists with checked sums, and one clear line for what is missing."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from lab import setup
from lab.broker import EmbeddedBroker, check_port_is_free, free_ports
from lab.doctor import examine
from lab.java_home import SetupError, find_java, java_version
from lab.reset import reset
from lab.setup import LOCALFS_JAR, compile_localfs, ensure_jars, read_checksums, wrong_jars
from lab.supervisor import only_one
from schemas.settings import load_settings

HOME = Path(__file__).resolve().parents[2]


def script(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "java"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def home_with(tmp_path, **sections):
    """A settings file over the project's, with all state under `tmp_path`."""
    text = f'[lake]\npath = "{tmp_path}/lake"\n[stream]\ncheckpoint = "{tmp_path}/checkpoints/stream"\n'
    local = {"folder": f"{tmp_path}/var", **sections}
    text += "[local]\n" + "".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in local.items())
    file = tmp_path / "over.toml"
    file.write_text(text)
    return file


def test_jars_that_are_missing_changed_or_not_on_the_list_are_named(tmp_path):
    for name in ("right.jar", "changed.jar", "extra.jar"):
        (tmp_path / name).write_text(name)
    expected = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("right.jar", "missing.jar")}
    expected["changed.jar"] = "0" * 64
    assert wrong_jars(tmp_path, expected) == [
        "missing.jar is missing", "extra.jar is not on the list", "changed.jar has another SHA-256 than the list",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["spark", "kafka"])
def test_every_jar_of_the_ivy_list_has_a_checksum(name):
    listed = (HOME / "conf" / "jars" / f"{name}.xml").read_text().count("<dependency ")
    assert listed == len(read_checksums(HOME / "conf" / "jars" / f"{name}.sha256"))


def test_jars_that_are_there_are_not_fetched_again(jars, monkeypatch):
    monkeypatch.setattr(setup, "find_java", lambda: pytest.fail("a process would be started"))
    assert ensure_jars(load_settings(environment={})) == jars


def test_a_download_that_brings_other_jars_is_refused_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        setup, "find_java", lambda: str(script(tmp_path / "bin", "echo unresolved: nowhere >&2; exit 1"))
    )
    with pytest.raises(SetupError, match=r"wanted\.jar is missing"):
        setup._fetch(tmp_path / "list.xml", tmp_path / "jars" / "spark", {"wanted.jar": "0" * 64})
    assert list((tmp_path / "jars").iterdir()) == []


def test_the_local_file_system_is_compiled_without_a_java_compiler(tmp_path):
    compile_localfs(tmp_path / "made.jar")
    names = zipfile.ZipFile(tmp_path / "made.jar").namelist()
    assert "anabranch/localfs/NoForkLocalFs.class" in names
    assert "anabranch/localfs/NoForkLocalFileSystem.class" in names


def test_a_java_home_without_java_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="which holds no bin/java") as raised:
        find_java()
    assert "\n" not in str(raised.value)


def test_a_java_that_is_too_old_is_refused_with_its_version(tmp_path, monkeypatch):
    script(tmp_path / "bin", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="is Java 11, at least 17"):
        find_java()


@pytest.mark.parametrize(
    ("said", "version"), [('version "1.8.0_292"', 8), ('version "17.0.15"', 17), ('version "25"', 25)]
)
def test_javas_version_is_read_in_old_and_new_forms(tmp_path, said, version):
    assert java_version(str(script(tmp_path, f"echo '{said}' >&2"))) == version


def test_a_java_that_does_not_run_is_said(tmp_path):
    with pytest.raises(SetupError, match="does not run"):
        java_version(str(script(tmp_path, "exit 3")))


def test_a_taken_port_is_refused_with_what_to_do(broker):
    with pytest.raises(SetupError, match="is taken: stop who holds it"):
        check_port_is_free(broker.port, "a test")
    check_port_is_free(free_ports(1)[0], "a test")


@pytest.mark.broker
def test_a_broker_that_cannot_start_shows_its_last_words(tmp_path, jars):
    one = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    one.prepare()
    (tmp_path / "kafka" / "data" / "meta.properties").write_text("version=1\nnode.id=99\ncluster.id=other\n")
    with pytest.raises(SetupError, match="did not start"):
        one.start()
    assert one.process.poll() is not None


def test_the_doctor_finds_this_machine_well(tmp_path, jars):
    findings = examine(HOME, [home_with(tmp_path)])
    assert [finding for finding in findings if not finding.ok] == []
    assert {"python", "java", "packages", "jars for spark", "jars for kafka", "disk", "lake"} <= {
        f.check for f in findings
    }


def test_the_doctor_says_what_is_wrong_and_what_to_do(tmp_path, jars, broker):
    folder = tmp_path / "jars"
    shutil.copytree(jars.spark, folder / "spark")
    (folder / "spark" / LOCALFS_JAR).unlink()
    next(iter((folder / "spark").glob("delta-spark*.jar"))).write_text("tampered")
    file = home_with(tmp_path, jars=str(folder), broker_port=broker.port, free_disk_mb=10**9)
    wrong = {finding.check: finding for finding in examine(HOME, [file]) if not finding.ok}
    assert set(wrong) == {"jars for spark", "jars for kafka", "disk", "port of the broker"}
    assert "another SHA-256" in wrong["jars for spark"].found
    assert all(finding.remedy for finding in wrong.values())


def test_the_doctor_names_the_key_of_wrong_settings(tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text("[stream]\nbukets = 1\n")
    (wrong,) = (finding for finding in examine(HOME, [file]) if not finding.ok)
    assert "stream.bukets" in wrong.found


def test_reset_forgets_state_but_not_the_readme_and_refuses_while_a_run_is_alive(tmp_path):
    settings = load_settings([home_with(tmp_path)], HOME, {})
    (tmp_path / "checkpoints" / "stream").mkdir(parents=True)
    (tmp_path / "checkpoints" / "README.md").write_text("stays")
    (tmp_path / "var" / "kafka").mkdir(parents=True)
    with only_one(tmp_path / "var"), pytest.raises(SetupError, match="another local run"):
        reset(settings)
    assert {path.name for path in reset(settings)} == {"stream", "kafka"}
    assert (tmp_path / "checkpoints" / "README.md").exists()
    assert reset(settings) == []

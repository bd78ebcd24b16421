"""The jars and what they need: closed lists with checked sums, and one clear line for what is missing."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from anabranch.cli.main import cli
from anabranch.local import compiling, fetching, setup
from anabranch.local.broker import EmbeddedBroker, check_port_is_free, free_ports
from anabranch.local.reset import reset
from anabranch.local.setup import (
    LOCALFS_JAR,
    compile_localfs,
    ensure_jars,
    localfs_is_current,
    read_checksums,
    wrong_jars,
)
from anabranch.local.supervisor import lock_folder
from runtime.java_home import SetupError, find_java, java_version
from schemas.settings.root import SECRET_VARIABLES, load_settings
from tests.examples import only_first
from tests.local.settings import home_with

HOME = Path(__file__).resolve().parents[2]


def script(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "java"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_unlisted_or_changed_jars_are_named(tmp_path):
    for name in ("right.jar", "changed.jar", "extra.jar"):
        (tmp_path / name).write_text(name)
    expected = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("right.jar", "missing.jar")}
    expected["changed.jar"] = "0" * 64
    assert wrong_jars(tmp_path, expected) == [
        "missing.jar is missing",
        "extra.jar is not on the list",
        "changed.jar has another SHA-256 than the list",
    ]


@pytest.fixture
def served(tmp_path, jars, monkeypatch):
    """Settings with a copy of the jars, and a Java that brings those of the kept copy when it is asked to fetch."""
    copy, kept = tmp_path / "copy", jars.spark.parent
    shutil.copytree(kept, copy)
    fetched = []

    def bring(ivy_file, folder, expected, say):
        fetched.append(folder.name)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept / folder.name, folder)

    monkeypatch.setattr(setup, "_fetch", bring)
    return load_settings([home_with(tmp_path, jars=str(copy))], HOME, {}), fetched


@pytest.mark.parametrize("harm", only_first(2, ["changed", "added", "removed", "cut short"]))
def test_unlisted_jars_unused_and_fetched_again(served, harm):
    settings, fetched = served
    folder = settings.path(settings.local.jars) / "kafka"
    jar = next(folder.glob("kafka-clients-*.jar"))
    if harm == "changed":
        jar.write_bytes(jar.read_bytes()[:-1] + b"!")
    elif harm == "cut short":
        jar.write_bytes(jar.read_bytes()[:1000])
    elif harm == "added":
        (folder / "evil.jar").write_text("not on the list")
    else:
        jar.unlink()
    said = []
    ensure_jars(settings, said.append)
    assert fetched == ["kafka"]
    assert "evil.jar" in said[0] if harm == "added" else jar.name in said[0]
    assert wrong_jars(folder, read_checksums(HOME / "conf" / "jars" / "kafka.sha256")) == []


def test_local_file_system_recompiled_on_change(served, monkeypatch):
    settings, fetched = served
    jar = settings.path(settings.local.jars) / "spark" / LOCALFS_JAR
    before = jar.stat().st_ino
    ensure_jars(settings)
    assert jar.stat().st_ino == before
    monkeypatch.setattr(compiling, "source_digest", lambda sources: b"of other sources")
    ensure_jars(settings)
    assert localfs_is_current(jar)
    assert jar.stat().st_ino != before
    assert fetched == []


@pytest.mark.parametrize("name", ["spark", "kafka", "zookeeper", "pulsar-admin", "pulsar", "pulsar-lts"])
def test_every_jar_of_the_ivy_list_has_a_checksum(name):
    dependencies = ElementTree.parse(HOME / "conf" / "jars" / f"{name}.xml").iter("dependency")
    listed = sum(max(1, len(dependency.findall("artifact"))) for dependency in dependencies)
    assert listed == len(read_checksums(HOME / "conf" / "jars" / f"{name}.sha256"))


def test_jars_that_are_there_are_not_fetched_again(jars, monkeypatch):
    monkeypatch.setattr(fetching, "find_java", lambda: pytest.fail("a process would be started"))
    assert ensure_jars(load_settings(environment={})) == jars


@pytest.mark.process
def test_download_of_other_jars_refused_cleanly(tmp_path, monkeypatch):
    monkeypatch.setattr(
        fetching, "find_java", lambda: str(script(tmp_path / "bin", "echo unresolved: nowhere >&2; exit 1"))
    )
    with pytest.raises(SetupError, match=r"wanted\.jar is missing; unresolved: nowhere"):
        setup._fetch(HOME / "conf/jars/spark.xml", tmp_path / "jars" / "spark", {"wanted.jar": "0" * 64}, print)
    assert list((tmp_path / "jars").iterdir()) == []


@pytest.mark.process
def test_local_file_system_needs_no_java_compiler(tmp_path):
    compile_localfs(tmp_path / "made.jar")
    names = zipfile.ZipFile(tmp_path / "made.jar").namelist()
    assert "anabranch/localfs/NoForkLocalFs.class" in names
    assert "anabranch/localfs/NoForkLocalFileSystem.class" in names


def test_a_java_home_without_java_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="which holds no bin/java") as raised:
        find_java()
    assert "\n" not in str(raised.value)


@pytest.mark.process
def test_old_java_refused_with_its_version(tmp_path, monkeypatch):
    script(tmp_path / "bin", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="is Java 11, at least 17"):
        find_java()


@pytest.mark.process
@pytest.mark.parametrize(
    ("said", "version"), [('version "1.8.0_292"', 8), ('version "17.0.15"', 17), ('version "25"', 25)]
)
def test_javas_version_is_read_in_old_and_new_forms(tmp_path, said, version):
    assert java_version(str(script(tmp_path, f"echo '{said}' >&2"))) == version


@pytest.mark.process
def test_java_is_checked_before_any_package_is_installed(tmp_path):
    """As `make` does on a new machine: -S leaves out all packages of this Python."""
    script(tmp_path / "bin", """echo 'version "11"' >&2""")
    environment = {"PATH": os.environ["PATH"], "JAVA_HOME": str(tmp_path)}
    command = [sys.executable, "-S", "-m", "runtime.java_home"]
    done = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr == f"{tmp_path}/bin/java is Java 11, at least 17 is needed: install a newer one, or set JAVA_HOME\n"
    )


@pytest.mark.process
def test_javas_child_gets_no_secret(tmp_path, monkeypatch):
    for name in SECRET_VARIABLES:
        monkeypatch.setenv(name, "secret")
    java = script(tmp_path, f"""env > {tmp_path}/environment; echo 'version "17"' >&2""")
    assert java_version(str(java)) == 17
    assert not SECRET_VARIABLES & {
        line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()
    }


@pytest.mark.process
def test_a_java_that_does_not_run_is_said(tmp_path):
    with pytest.raises(SetupError, match="does not run"):
        java_version(str(script(tmp_path, "exit 3")))


def test_a_taken_port_is_refused_with_what_to_do(broker):
    with pytest.raises(SetupError, match="is taken: stop the process that uses it"):
        check_port_is_free(broker.port, "a test")
    check_port_is_free(free_ports(1)[0], "a test")


@pytest.mark.broker
def test_failed_broker_shows_last_words(tmp_path, jars):
    one = EmbeddedBroker(tmp_path / "kafka", jars.kafka)
    one.prepare()
    (tmp_path / "kafka" / "data" / "meta.properties").write_text("version=1\nnode.id=99\ncluster.id=other\n")
    with pytest.raises(SetupError, match="did not start"):
        one.start()
    assert one.process.poll() is not None


def test_reset_deletes_state_unless_run_is_alive(tmp_path):
    """The readme stays."""
    settings = load_settings([home_with(tmp_path)], HOME, {})
    (tmp_path / "checkpoints" / "stream").mkdir(parents=True)
    (tmp_path / "checkpoints" / "README.md").write_text("stays")
    (tmp_path / "var" / "kafka").mkdir(parents=True)
    with lock_folder(tmp_path / "var"), pytest.raises(SetupError, match="another local run"):
        reset(settings)
    assert {path.name for path in reset(settings)} == {"stream", "kafka"}
    assert (tmp_path / "checkpoints" / "README.md").exists()
    assert reset(settings) == []


@pytest.mark.parametrize("name", ["anabranch.toml", "clients.toml"])
def test_reset_forgets_layouts_of_every_local_run(tmp_path, name):
    settings = load_settings([HOME / "conf" / name], tmp_path, {})
    database = settings.path(settings.controller.database)
    database.parent.mkdir(parents=True)
    database.write_text("layouts")
    reset(settings)
    assert not database.exists()


@pytest.fixture
def local_home(tmp_path):
    """A home with state of a local run, and with what belongs to others beside it."""
    home = tmp_path / "home"
    for name in ("checkpoints/stream/offsets", "var/kafka", "var/lake/decisions", "var/reports", "data/customers"):
        (home / name).mkdir(parents=True)
    (home / "checkpoints" / "other.db").write_text("stays")
    (home / "checkpoints" / "stream.lock").write_text("goes")
    (tmp_path / "elsewhere").mkdir()
    (home / "var" / "log").symlink_to(tmp_path / "elsewhere")
    return home


def files_of(home):
    return {str(path.relative_to(home)) for path in home.rglob("*")}


def asked_to_reset(home, *arguments, text="", stdin=None):
    (home.parent / "s.toml").write_text(text)
    command = ["--home", str(home), "-c", str(home.parent / "s.toml"), "reset", *arguments]
    return CliRunner().invoke(cli, command, input=stdin)


def test_reset_lists_what_goes_and_asks(local_home):
    before = files_of(local_home)
    done = asked_to_reset(local_home, stdin="n\n")
    assert done.exit_code == 1
    for name in ("checkpoints/stream", "checkpoints/stream.lock", "var/kafka", "var/lake", "var/log"):
        assert f"{local_home}/{name}\n" in done.output
    assert files_of(local_home) - {"var/run.lock"} == before


@pytest.mark.parametrize(("arguments", "stdin"), [(["--yes"], None), ([], "y\n")])
def test_reset_deletes_only_what_a_local_run_made(local_home, arguments, stdin):
    done = asked_to_reset(local_home, *arguments, stdin=stdin)
    assert done.exit_code == 0, done.output
    left = {"checkpoints", "checkpoints/other.db", "var", "var/reports", "var/run.lock", "data", "data/customers"}
    assert files_of(local_home) == left
    assert (local_home.parent / "elsewhere").is_dir()


@pytest.mark.parametrize(
    "text",
    [
        '[stream]\ncheckpoint = "/checkpoint"\n',
        '[stream]\ncheckpoint = "../elsewhere/checkpoint"\n',
        '[stream]\ncheckpoint = "."\n',
        '[lake]\npath = "s3://production/lake"\n',
        '[lake]\npath = "/srv/lake"\n',
        '[local]\nfolder = "/var"\n',
        '[local]\nfolder = ".."\n',
    ],
)
def test_reset_refuses_state_outside_of_the_home(local_home, text):
    before = files_of(local_home)
    done = asked_to_reset(local_home, "--yes", text=text)
    assert (done.exit_code, "this is no local run" in done.output) == (1, True)
    assert files_of(local_home) == before


def test_tools_that_install_are_pinned_with_hashes():
    lock = (HOME / "conf" / "bootstrap.lock").read_text().replace("\\\n", " ")
    pinned = {line.split("==")[0]: line for line in lock.splitlines() if line.strip()}
    assert {"uv", "setuptools", "wheel"} <= pinned.keys()
    assert all("==" in line and "--hash=sha256:" in line for line in pinned.values())
    steps = [line for line in (HOME / "Makefile").read_text().splitlines() if "pip install" in line]
    assert len(steps) == 3
    assert all("--require-hashes" in line or "--no-deps -e ." in line for line in steps)
    assert all("--no-build-isolation" in line or "--only-binary :all:" in line for line in steps)

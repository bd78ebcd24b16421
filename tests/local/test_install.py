"""The wheel, installed into an environment of its own and started in an empty folder, finds all that it needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.process

NO_SOURCES = shutil.ignore_patterns(".*", "__pycache__", "var", "checkpoints", "build", "dist", "*.egg-info", "tests")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build in place would take old files from `build/` and leave new ones there."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(HOME, folder / "sources", ignore=NO_SOURCES)
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", str(folder), "."]
    subprocess.run(command, cwd=folder / "sources", check=True, timeout=200)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`anabranch` of a fresh environment: the wheel, and everything else from the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=100)
    python = folder / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", str(python), str(wheel)],
        check=True,
        timeout=100,
    )
    packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    (Path(packages) / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "anabranch"


def run(anabranch: Path, folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ANABRANCH", "COV"))}
    return subprocess.run(
        [str(anabranch), *arguments],
        cwd=folder,
        env=kept,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_wheel_contains_all_packages_and_data(wheel):
    """Packages, conf, JSON Schemas and Java sources."""
    listed = set(zipfile.ZipFile(wheel).namelist())
    java = [*HOME.glob("anabranch/**/*.java")]
    assert len(java) > 5
    wanted = [*HOME.glob("conf/**/*.*"), *HOME.glob("schemas/json/*.json"), *java, *HOME.glob("anabranch/**/*.sql")]
    contracts = ConfigParser()
    contracts.read(HOME / ".importlinter")
    packages = [name for name in contracts["importlinter"]["root_packages"].split() if name != "anabranch_client"]
    assert len(packages) == 7
    for package in packages:
        wanted += (HOME / package).rglob("*.py")
    assert {str(file.relative_to(HOME)) for file in wanted} - listed == set()
    assert not [name for name in listed if name.startswith(("tests/", "benchmarks/", "clients/", "anabranch_client/"))]


def test_wheel_brings_spark_with_its_extra_alone(wheel):
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = archive.read(metadata).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    always = {re.split(r"[<>=!;\[ ]", line)[0] for line in required if "extra ==" not in line}
    of_the_job = {re.split(r"[<>=!;\[ ]", line)[0] for line in required if 'extra == "job"' in line}
    assert of_the_job == {"delta-spark", "pandas", "plotly", "pyspark"}
    assert {"deltalake", "pyarrow", "confluent-kafka", "uvicorn"} <= always
    assert not always & of_the_job


def test_wheel_brings_licence_docs_and_deployment(wheel):
    listed = zipfile.ZipFile(wheel).namelist()
    for end in (
        "licenses/LICENSE",
        "share/doc/anabranch/operations.md",
        "share/anabranch/anabranch-executor.service",
        "share/anabranch/Containerfile",
        "share/anabranch/helm/anabranch/templates/job.yaml",
        "share/anabranch/helm/anabranch/values.schema.json",
        "files/dashboards/fleet.json",
    ):
        assert any(name.endswith(end) for name in listed), end


def test_missing_spark_names_needed_extra(installed, tmp_path):
    hidden = tmp_path / "without"
    (hidden / "pyspark").mkdir(parents=True)
    (hidden / "pyspark" / "__init__.py").write_text(
        "raise ModuleNotFoundError('No module named pyspark', name='pyspark')"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(hidden)}
    job = subprocess.run(
        [str(installed), "stream"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert job.returncode == 2
    assert job.stderr.splitlines()[-1] == (
        "Error: this needs pyspark, which the package has with its extra: anabranch[job]"
    )
    snapshot = (HOME / "docs" / "examples" / "snapshots.jsonl").read_text().splitlines()[0]
    decided = subprocess.run(
        [str(installed), "decide"],
        cwd=tmp_path,
        env=environment,
        input=snapshot,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert decided.returncode == 0, decided.stderr


def test_the_wheel_says_its_version_and_its_commands(installed, tmp_path):
    assert run(installed, tmp_path, "--version").stdout.startswith("anabranch, version ")
    assert "doctor" in run(installed, tmp_path, "--help").stdout
    assert list(tmp_path.iterdir()) == []


def test_wheel_decides_in_empty_folder(installed, tmp_path):
    snapshots = (HOME / "docs" / "examples" / "snapshots.jsonl").read_text()
    there = run(installed, tmp_path, "decide", stdin=snapshots)
    here = run(Path(sys.executable), HOME, "-m", "anabranch", "decide", stdin=snapshots)
    assert there.returncode == 0, there.stderr
    assert there.stdout == here.stdout != ""


def test_doctor_of_wheel_finds_settings_and_state(installed, tmp_path, jars):
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "jars").symlink_to(jars.spark.parent)
    done = run(installed, tmp_path, "doctor", "--output", "json")
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert [finding for finding in found.values() if not finding["ok"]] == []
    assert done.returncode == 0
    environment = str(installed.parents[1])
    assert all(environment in found[check]["found"] for check in ("settings", "policy", "spark settings"))
    assert found["lake"]["found"].endswith(f"in {tmp_path}/var/lake")


def test_doctor_of_wheel_explains_fetching_jars(installed, tmp_path):
    done = run(installed, tmp_path, "doctor", "--output", "json")
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert "`anabranch local setup`" in found["jars for spark"]["remedy"]
    assert done.returncode == 1


def test_working_folder_settings_override_wheel(installed, tmp_path):
    (tmp_path / "conf" / "policies").mkdir(parents=True)
    (tmp_path / "conf" / "anabranch.toml").write_text('[lake]\npath = "mine"\n[controller]\nport = 0\n')
    (tmp_path / "conf" / "policies" / "default.toml").write_text("maxSegments = 7\n")
    (tmp_path / "anabranch.toml").write_text("[stream]\nbuckets = 3\n")
    done = run(installed, tmp_path, "doctor", "--output", "json")
    found = {finding["check"]: finding["found"] for finding in json.loads(done.stdout)}
    assert found["lake"].endswith(f"in {tmp_path}/mine")
    assert found["policy"] == str(tmp_path / "conf" / "policies" / "default.toml")
    assert found["settings"].endswith(f"{tmp_path}/anabranch.toml")
    assert str(installed.parents[1]) in found["spark settings"]

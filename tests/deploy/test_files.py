"""Units, compose file and Containerfile: valid for their own tools, and every process has its place."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from deploy.sbom import bill_of_materials
from schemas.settings.root import load_settings
from tests.deploy.programs import installed_program
from tests.docs.guides import blocks

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
PARTS = (
    "stream",
    "executor",
    "collector pulsar",
    "collector kafka",
    "collector bundles",
    "web",
    "alerts",
    "controller",
)
PROCESSES = {f"serve {part}" for part in PARTS}


def test_every_process_has_a_unit():
    started = {command for unit in UNITS for command in re.findall(r"anabranch\.toml (.*)", unit.read_text())}
    assert started >= PROCESSES
    for unit in UNITS:
        text = unit.read_text()
        for line in ("ProtectSystem=strict", "StateDirectory=anabranch", "NoNewPrivileges=true"):
            assert line in text, unit.name


@pytest.mark.process
@pytest.mark.parametrize("file", [*UNITS, DEPLOY / "anabranch-lake.timer"], ids=lambda file: file.name)
def test_units_are_valid(tmp_path, file):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "anabranch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for one in DEPLOY.glob("anabranch-*"):
        text = one.read_text().replace("/opt/anabranch/.venv/bin/anabranch", str(program))
        (tmp_path / one.name).write_text(text.replace("User=anabranch", "User=root"))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / file.name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if file.name in line]
    assert complaints == []


@pytest.mark.process
def test_units_of_deploy_md_are_enabled(tmp_path):
    """Run the block in a root folder, where nothing can be reloaded or started."""
    if shutil.which("systemctl") is None:
        pytest.skip("systemctl is not installed")
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    [guide] = [block for block in blocks("docs/deploy.md") if block.run_by == "tests/deploy/test_files.py"]
    copy, reload, enable = guide.commands
    assert reload == "systemctl daemon-reload"
    for command in (
        copy.replace("/etc/systemd/system/", f"{units}/"),
        enable.replace("systemctl enable --now", f"systemctl --root={tmp_path} enable"),
    ):
        subprocess.run(command, shell=True, cwd=DEPLOY.parent, check=True, timeout=60)
    started = {link.name.partition(".")[0] for link in units.glob("*.wants/*")}
    assert started == set(enable.replace(".timer", "").split()[3:])


def test_compose_sets_settings_that_load(tmp_path):
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"topics", "job", "executor", "collector", "kafka-collector", "page", "alerts", "upkeep"}
    for name, service in services.items():
        variables = {
            key: re.sub(r"\$\{\w+:-(.*)\}|\$\{\w+:\?.*\}", lambda found: found[1] or "host:1", value)
            for key, value in service["environment"].items()
            if not key.endswith("TOKEN")
        }
        variables["ANABRANCH_CONTROLLER_URL"] = "http://broker:8080"
        settings = load_settings([], tmp_path, variables)
        assert (settings.executor.mode, settings.lake_path) == ("observe", "/lake")
        assert service["read_only"], name


def test_lake_is_looked_after_alike():
    """The record is checked last, and no failure is passed over."""
    unit = (DEPLOY / "anabranch-lake.service").read_text()
    by_timer = re.findall(r"^ExecStart=/\S+ --config \S+ (.*)", unit, re.MULTILINE)
    assert by_timer == ["lake optimize", "lake retain --apply", "lake vacuum", "lake check"]
    upkeep = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["upkeep"]
    assert re.findall(r"^  anabranch (.*)", upkeep["command"][0], re.MULTILINE) == by_timer
    assert upkeep["entrypoint"][-1] == "-ec"
    chart = (DEPLOY / "helm/anabranch/templates/upkeep.yaml").read_text()
    assert re.findall(r"anabranch (lake \w+(?: --apply)?)", chart) == by_timer


def test_supervisors_leave_what_needs_a_person():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        if service["restart"] != "no" and name != "upkeep":
            assert service["entrypoint"][:6] == ["tini", "-e", "2", "-e", "4", "--"], name
    for unit in UNITS:
        text, wanted = unit.read_text(), "2 4" if unit.name == "anabranch-stream.service" else "2"
        if "Restart=" in text:
            assert f"RestartPreventExitStatus={wanted}\n" in text, unit.name


def test_compose_passes_settings_of_secured_kafka(tmp_path):
    """By a file of variables and a folder of certificates; both may be left out."""
    text = (DEPLOY / "compose.yaml").read_text()
    for service in yaml.safe_load(text)["services"].values():
        assert service["env_file"] == "${SETTINGS:-/dev/null}"
        assert "${CERTIFICATES:-/etc/ssl/certs}:/etc/anabranch:ro" in service["volumes"]
    head = text.partition("x-process")[0].replace("=/etc/anabranch/", f"={DEPLOY.parent}/tests/tls/")
    variables = dict(re.findall(r"(ANABRANCH_KAFKA\w+)=([^,\s]+)", head))
    kafka = load_settings([], tmp_path, variables).kafka_connection().librdkafka({})
    assert kafka["security.protocol"] == "SASL_SSL"
    assert (kafka["sasl.mechanism"], kafka["ssl.ca.location"][-10:]) == ("SCRAM-SHA-512", "tls/ca.pem")
    assert kafka["sasl.username"] == kafka["sasl.password"] == "…"


def test_new_volumes_belong_to_the_account():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    volumes = {volume for service in services.values() for volume in service["volumes"] if not volume.startswith("$")}
    mounts = {volume.partition(":")[2] for volume in volumes}
    folders = re.findall(r"install -d -o 10001 -g 10001 -m 0700 (.+)", (DEPLOY / "Containerfile").read_text())
    assert mounts == set(" ".join(folders).split())


def pins(lock: Path) -> set[str]:
    """The packages of a lock file, each with its version, marker and hashes."""
    return set(re.split(r"\n(?=\S)", lock.read_text().strip()))


def test_images_hold_packages_of_the_lock():
    app, job, everything = (pins(DEPLOY / name) for name in ("app.lock", "job.lock", "../requirements.lock"))
    assert app < job < everything
    assert not [pin for pin in job if pin.startswith(("pytest", "mypy", "selenium"))]


def test_images_install_nothing_without_a_hash():
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    installs = re.findall(r"pip install [^&\n]*[^&\s]", "\n".join(line for line in lines if line.startswith("RUN ")))
    assert len(installs) == 5
    assert [command for command in installs if "--require-hashes" not in command] == [
        "pip install --no-cache --no-deps ./anabranch-*.whl"
    ]


def test_bill_of_materials_lists_packages_and_jars(tmp_path):
    jar = tmp_path / "spark" / "commons-pool2-2.13.1.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"abc")
    (jar.parent / "anabranch-localfs.jar").touch()
    bill = bill_of_materials(tmp_path)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {component["name"]: component for component in bill["components"]}
    assert by_name["commons-pool2"]["version"] == "2.13.1"
    assert "version" not in by_name["anabranch-localfs"]
    # Of FIPS 180-4: the digest of these three letters.
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert by_name["commons-pool2"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert by_name["deltalake"]["purl"] == f"pkg:pypi/deltalake@{version('deltalake')}"


def test_each_image_writes_its_bill():
    stages = (DEPLOY / "Containerfile").read_text().split("\nFROM ")
    writes = [stage.split()[2] for stage in stages if "> /opt/anabranch/sbom.json" in stage]
    assert writes == ["built", "built-job"]


@pytest.mark.process
def test_containerfile_is_clean():
    hadolint = installed_program("hadolint") or pytest.skip("hadolint is not installed, and is fetched for Linux only")
    done = subprocess.run([hadolint, str(DEPLOY / "Containerfile")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")

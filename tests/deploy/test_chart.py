"""The chart: generated files are current, pods are restricted, and what it sets are settings that load."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from anabranch.collectors.metrics import CollectorMeter
from anabranch.executor.metrics import registry_of
from deploy.dashboards import DASHBOARDS
from deploy.generate import CHART, generated, settings_schema
from runtime.telemetry.health import ProcessHealth
from runtime.telemetry.serving import ProcessMetrics
from schemas.settings.root import load_settings
from streaming.job.metrics import METRICS
from tests.deploy.prometheus import METRIC

VALUES = {name: str(CHART / "ci" / f"{name}-values.yaml") for name in ("shadow", "everything", "claim", "operator")}
"""Values by name; with each the chart is complete."""
COLLECTORS = {"shadow": (True, False), "everything": (True, True), "claim": (False, True), "operator": (False, True)}
"""Whether the collectors of Pulsar's and of Kafka's segments run."""


def exported() -> set[str]:
    """Names that processes export, of real registries."""
    registries = [CollectorMeter().registry, registry_of(list), CollectorRegistry()]
    registries[-1].register(ProcessMetrics("part", ProcessHealth()))
    names = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
    for registry in registries:
        for family in registry.collect():
            names |= {family.name, f"{family.name}_total"} if family.type == "counter" else {family.name}
    for metric in METRICS:
        names |= {metric.name, f"{metric.name}_bucket"} if metric.kind == "histogram" else {metric.name}
    return names


def test_generated_files_are_current():
    for file, text in generated().items():
        assert file.read_text() == text, f"{file.name}: run python -m deploy.generate"


def test_panels_and_alerts_ask_for_exported_metrics():
    queries = [query for page in DASHBOARDS for panel in page.panels for query, _ in panel.queries]
    rules = yaml.safe_load((CHART / "files" / "prometheus-rules.json").read_text())
    queries += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    asked = {name for query in queries for name in METRIC.findall(query)}
    assert len(asked) > 20
    assert asked <= exported(), asked - exported()


def test_schema_of_values_has_no_secrets():
    properties = settings_schema()["$defs"]["KafkaSettings"]["properties"]
    assert "bootstrap" in properties
    assert "password" not in properties


def rendered(helm: str, values: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "x", str(CHART), "--namespace", "scaling", "-f", VALUES[values], *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def objects(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]


def pods(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Specs of pods by the names of what makes them."""
    specs = {}
    for one in found:
        spec = one.get("spec", {})
        spec = spec.get("jobTemplate", one).get("spec", spec)
        name = one["metadata"]["name"]
        if one["kind"] == "SparkApplication":
            specs |= {
                name: spec["driver"]["template"]["spec"],
                "executor of Spark": spec["executor"]["template"]["spec"],
            }
        elif "template" in spec:
            specs[name] = spec["template"]["spec"]
    return specs


@pytest.mark.process
@pytest.mark.parametrize("values", VALUES)
def test_pods_are_restricted_and_their_settings_load(helm, tmp_path, values):
    specs = pods(objects(rendered(helm, values)))
    assert {"x-job", "x-executor", "x-page", "x-alerts", "x-upkeep", "x-setup", "x-gate"} <= set(specs)
    assert ("x-collector" in specs, "x-kafka-collector" in specs) == COLLECTORS[values]
    for name, spec in specs.items():
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec.get("initContainers", []) + spec["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
            variables = {one["name"]: one.get("value", "user:secret") for one in container["env"]}
            assert len(variables) == len(container["env"]), "a name comes twice"
            settings = load_settings([], tmp_path, variables)
            assert settings.executor.mode == "observe"
            assert settings.lake_path == ("/lake" if values == "claim" else "s3://bucket/lake")
            assert (settings.executor.poll_ms, settings.executor.lease_seconds) == (
                (1000, 20) if values == "claim" else (5000, 75)
            )
            assert settings.metrics.host == "0.0.0.0"
            if values == "everything":
                assert settings.stream.buckets == 64
                assert settings.executor.brakes.windows[0].zone == "UTC"
                assert settings.retention.namespaces["acme/shop"].events == 7


@pytest.mark.process
def test_gate_fails_on_forbidden_differences(helm, tmp_path):
    for allowed, option in (("false", ""), ("true", " --allow-differences")):
        done = rendered(helm, "shadow", "--set", f"upgradeGate.allowDifferences={allowed}")
        script = pods(objects(done))["x-gate"]["containers"][0]["args"][0]
        for answer in (0, 1, 3):
            code, called = run_script(script, tmp_path, f"exit {answer}")
            assert (code, called) == (answer, [f"decisions replay --since 1d ago{option}"])


@pytest.mark.process
def test_gate_passes_any_text_as_one_word(helm, tmp_path):
    text = "1d' ago; touch x; '$(touch x)"
    done = rendered(helm, "shadow", "--set-string", f"upgradeGate.since={text}")
    script = pods(objects(done))["x-gate"]["containers"][0]["args"][0]
    code, called = run_script(script, tmp_path, 'test "$4" = "$EXPECTED"', EXPECTED=text)
    assert (code, called) == (0, [f"decisions replay --since {text}"])


@pytest.mark.process
@pytest.mark.parametrize(
    ("files", "count", "code", "called"),
    [
        # A rebuilt checkpoint has no commits before the job's first batch.
        (["metadata"], "echo 3", 0, []),
        (["spark.lock"], "echo 0", 0, ["lake create", "sql"]),
        ([], "echo '[{\"n\": 3}]'", 0, ["lake create", "sql", "lake state rebuild"]),
        ([], "exit 3", 3, ["lake create", "sql"]),
    ],
    ids=["kept", "new", "lost", "unreadable"],
)
def test_lost_checkpoint_is_rebuilt_unless_the_lake_is_new(helm, tmp_path, files, count, code, called):
    script = pods(objects(rendered(helm, "shadow")))["x-job"]["initContainers"][0]["args"][0]
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for name in files:
        (checkpoint / name).touch()
    script = script.replace("/var/lib/anabranch/checkpoint", str(checkpoint))
    done, calls = run_script(script, tmp_path, f'[ "$1" != sql ] || {{ {count}; exit; }}')
    assert (done, [call.partition(" --output")[0] for call in calls]) == (code, called)


def run_script(script: str, folder: Path, answer: str, **variables: str) -> tuple[int, list[str]]:
    """Run a pod's script with a program `anabranch` that does `answer`; return its exit code and the calls."""
    program, calls = folder / "anabranch", folder / "calls"
    program.write_text(f'#!/bin/sh\necho "$*" >> {calls}\n{answer}\n')
    program.chmod(0o755)
    calls.write_text("")
    done = subprocess.run(["sh", "-ec", script], env={"PATH": f"{folder}:/usr/bin:/bin", **variables}, timeout=30)
    return done.returncode, calls.read_text().splitlines()


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "kafka.bootstrap="], "kafka.bootstrap is required"),
        (["--set", "lake.credentialsSecret="], "lake.credentialsSecret or lake.existingClaim is required"),
        (["--set", "excutor.mode=act"], "'excutor' not allowed"),
        (["--set", "settings.stream.bukets=3"], "'bukets' not allowed"),
        (["--set", "executor.mode=maybe"], "executor/mode"),
        (["--set-string", "page.tokensSecret=a}"], "page/tokensSecret"),
        (["--set-string", "job.memory=4Gi}"], "job/memory"),
        (["--set-string", "job.driverMemory=1g\nspark.plugins x"], "job/driverMemory"),
        (["--set-string", 'image.tag=x"'], "image/tag"),
        (["--set", "spark.master=spark://m:7077"], "job.stateClaim is required"),
        (["--set", "spark.master=spark://m:7077,job.stateClaim=state"], "networkPolicy.sparkFrom is required"),
        (["--set", "spark.master=yarn"], "spark/master"),
        (["--set", "controller.enabled=true"], "exclude one another: there is one controller"),
        (["--set", "controller.enabled=true,cluster.adminUrl=,cluster.tokenSecret=none"], "others reach it"),
        (["--set", "controller.metadata=mysql"], "controller/metadata"),
    ],
)
def test_wrong_values_are_refused(helm, options, message):
    done = rendered(helm, "shadow", *options)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.process
def test_everything_on_has_monitoring(helm):
    found = objects(rendered(helm, "everything"))
    kinds = [one["kind"] for one in found]
    assert {"PodMonitor", "PrometheusRule", "PodDisruptionBudget", "NetworkPolicy", "Service"} <= set(kinds)
    [rules] = [one for one in found if one["kind"] == "PrometheusRule"]
    assert "AnabranchNoEvaluation" in {rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"]}
    assert kinds.count("ConfigMap") == 2 + len(DASHBOARDS)

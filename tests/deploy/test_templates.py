"""Each template of the chart: which objects a value adds or takes away, and where a value ends up."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import version
from typing import Any

import pytest

from deploy.dashboards import DASHBOARDS
from tests.deploy.test_chart import objects, rendered

pytestmark = pytest.mark.process

POD = "spec.template.spec"
ABSENT = "absent"


@cache
def by_name(program: str, *values: str) -> dict[str, dict[str, Any]]:
    """Return what the chart makes with these values, by `Kind/name`."""
    options = [word for value in values for word in ("--set", value)]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in objects(rendered(program, "shadow", *options))}


def value_at(entry: Any, path: str) -> Any:
    """Return the value at `a.0.b`; `ABSENT` where there is none."""
    for step in path.split("."):
        try:
            entry = entry[int(step) if step.isdigit() else step]
        except (KeyError, IndexError):
            return ABSENT
    return entry


@pytest.fixture(scope="module")
def delivered(helm) -> set[str]:
    """Names of the objects without a choice."""
    return set(by_name(helm))


@pytest.mark.parametrize(
    ("value", "added", "removed"),
    [
        ("collector.enabled=false", set(), {"Deployment/x-collector"}),
        ("collectors.kafka.enabled=true", {"Deployment/x-kafka-collector"}, set()),
        ("bundles.enabled=true", {"Deployment/x-bundle-collector"}, set()),
        (
            "controller.enabled=true,cluster.adminUrl=",
            {
                "StatefulSet/x-controller",
                "Service/x-controller",
                "Service/x-controller-nodes",
                "PodDisruptionBudget/x-controller",
            },
            # It reads Pulsar's brokers.
            {"Deployment/x-collector"},
        ),
        ("page.enabled=false", set(), {"Deployment/x-page"}),
        ("page.tokensSecret=page", {"Service/x-page"}, set()),
        ("alerts.enabled=false", set(), {"Deployment/x-alerts"}),
        ("upkeep.enabled=false", set(), {"CronJob/x-upkeep"}),
        ("upgradeGate.enabled=false", set(), {"Job/x-gate"}),
        ("networkPolicy.enabled=false", set(), {"NetworkPolicy/x"}),
        ("monitoring.podMonitor=true", {"PodMonitor/x"}, set()),
        ("monitoring.prometheusRule=true", {"PrometheusRule/x"}, set()),
        ("monitoring.dashboards=true", {f"ConfigMap/x-dashboard-{page.name}" for page in DASHBOARDS}, set()),
    ],
)
def test_switch_adds_and_removes_objects(helm, delivered, value, added, removed):
    made = set(by_name(helm, value))
    assert (made - delivered, delivered - made) == (added, removed)


@pytest.mark.parametrize(
    ("value", "name", "path", "expected"),
    [
        ("job.storage=9Gi", "StatefulSet/x-job", "spec.volumeClaimTemplates.0.spec.resources.requests.storage", "9Gi"),
        ("job.storageClass=", "StatefulSet/x-job", "spec.volumeClaimTemplates.0.spec.storageClassName", ABSENT),
        ("job.storageClass=fast", "StatefulSet/x-job", "spec.volumeClaimTemplates.0.spec.storageClassName", "fast"),
        ("job.stateClaim=state", "StatefulSet/x-job", "spec.volumeClaimTemplates", ABSENT),
        ("job.stateClaim=state", "StatefulSet/x-job", f"{POD}.volumes.2.persistentVolumeClaim.claimName", "state"),
        ("job.cpus=4", "StatefulSet/x-job", f"{POD}.containers.0.resources.limits.cpu", 4),
        ("job.memory=6Gi", "StatefulSet/x-job", f"{POD}.initContainers.0.resources.limits.memory", "6Gi"),
        ("job.rebuildLostCheckpoint=false", "StatefulSet/x-job", f"{POD}.initContainers", ABSENT),
        ("image.jobRepository=r/job", "StatefulSet/x-job", f"{POD}.containers.0.image", "r/job:0.1.0"),
        ("image.jobRepository=r/job", "Job/x-gate", f"{POD}.containers.0.image", "r/job:0.1.0"),
        ("image.repository=r/app", "Deployment/x-page", f"{POD}.containers.0.image", "r/app:0.1.0"),
        ("image.tag=next", "Deployment/x-executor", f"{POD}.containers.0.image", "anabranch:next"),
        ("image.pullSecrets[0].name=key", "Deployment/x-alerts", f"{POD}.imagePullSecrets", [{"name": "key"}]),
        ("executor.replicas=3", "Deployment/x-executor", "spec.replicas", 3),
        ("executor.replicas=3", "PodDisruptionBudget/x-executor", "spec.minAvailable", 1),
        ("executor.replicas=1", "PodDisruptionBudget/x-executor", "spec.minAvailable", ABSENT),
        ("executor.replicas=1", "PodDisruptionBudget/x-executor", "spec.maxUnavailable", 1),
        ("podLabels.team=a", "StatefulSet/x-job", "spec.template.metadata.labels.team", "a"),
        ("podLabels.team=a", "Deployment/x-collector", "spec.template.metadata.labels.team", "a"),
        ("nodeSelector.disk=ssd", "Deployment/x-collector", f"{POD}.nodeSelector", {"disk": "ssd"}),
        ("tolerations[0].key=a", "StatefulSet/x-job", f"{POD}.tolerations", [{"key": "a"}]),
        ("serviceAccount.annotations.role=a", "ServiceAccount/x", "metadata.annotations.role", "a"),
        ("upkeep.schedule=7 3 * * *", "CronJob/x-upkeep", "spec.schedule", "7 3 * * *"),
        (
            "kafka.createTopics=false",
            "Job/x-setup",
            f"{POD}.containers.0.args.0",
            "anabranch kafka check --replication-factor 3\nanabranch lake create",
        ),
        (
            "kafka.replicationFactor=1",
            "Job/x-setup",
            f"{POD}.containers.0.args.0",
            "".join(f"anabranch kafka {verb} --replication-factor 1\n" for verb in ("create", "check"))
            + "anabranch lake create",
        ),
        ("networkPolicy.egress[0].to[0].ipBlock.cidr=::/0", "NetworkPolicy/x", "spec.policyTypes.1", "Egress"),
        ("networkPolicy.egress=null", "NetworkPolicy/x", "spec.policyTypes", ["Ingress"]),
        ("networkPolicy.scrapersFrom=null", "NetworkPolicy/x", "spec.ingress", None),
    ],
)
def test_value_reaches_its_field(helm, value, name, path, expected):
    assert value_at(by_name(helm, value)[name], path) == expected


@pytest.mark.parametrize("kind", ["podMonitor", "prometheusRule"])
def test_monitoring_has_the_labels_that_its_operator_selects(helm, kind):
    made = by_name(helm, f"monitoring.{kind}=true", "monitoring.labels.release=prometheus")
    [entry] = [entry for entry in made.values() if entry["kind"].lower() == kind.lower()]
    assert entry["metadata"]["labels"]["release"] == "prometheus"


def test_page_is_open_only_to_named_peers_and_with_tokens(helm):
    peers = "networkPolicy.pageFrom[0].podSelector.matchLabels.app=proxy"
    for tokens, ports in (("", [9464]), ("page", [9464, 8090])):
        policy = by_name(helm, peers, f"page.tokensSecret={tokens}")["NetworkPolicy/x"]
        assert [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]] == ports


SPREAD = (
    "spark.master=spark://master:7077",
    "spark.executors=3",
    "spark.executorCores=2",
    "job.stateClaim=state",
    "networkPolicy.sparkFrom[0].podSelector.matchLabels.app=spark",
)


def test_job_on_a_spark_cluster_is_reached_by_its_executors(helm):
    made = by_name(helm, *SPREAD)
    assert made["Service/x-job"]["spec"]["clusterIP"] == "None"
    lines = dict(
        line.split(None, 1)
        for line in made["ConfigMap/x"]["data"]["spark.conf"].splitlines()
        if line and not line.startswith("#")
    )
    assert lines["spark.master"] == "spark://master:7077"
    assert (lines["spark.driver.host"], lines["spark.driver.bindAddress"]) == ("x-job-0.x-job.scaling.svc", "0.0.0.0")
    assert (lines["spark.cores.max"], lines["spark.sql.shuffle.partitions"]) == ("6", "6")
    [rule] = [rule for rule in made["NetworkPolicy/x"]["spec"]["ingress"] if len(rule["ports"]) > 1]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "spark"}}}]
    ports = {lines["spark.driver.port"], lines["spark.blockManager.port"]}
    assert {str(port["port"]) for port in rule["ports"]} == ports


def test_only_the_job_gets_the_secret_of_spark(helm):
    made = by_name(helm, *SPREAD, "spark.defaultsSecret=spark")
    holders = {name for name, entry in made.items() if "anabranch-spark" in str(entry)}
    assert holders == {"StatefulSet/x-job"}
    assert "spark.authenticate true" in made["ConfigMap/x"]["data"]["spark.conf"]


def test_spark_application_is_the_same_job(helm):
    made = by_name(helm, "job.kind=SparkApplication", "job.stateClaim=state", "spark.executors=3")
    assert "StatefulSet/x-job" not in made
    spec = made["SparkApplication/x-job"]["spec"]
    assert spec["sparkVersion"] == version("pyspark")
    assert spec["restartPolicy"]["type"] == "Always"
    assert (spec["executor"]["instances"], spec["sparkConf"]["spark.sql.shuffle.partitions"]) == (3, "3")
    # Spark refuses to run with addresses of its own choice.
    assert not {"spark.master", "spark.driver.host", "spark.driver.bindAddress"} & set(spec["sparkConf"])
    driver, executor = (spec[role]["template"]["spec"] for role in ("driver", "executor"))
    [job] = by_name(helm)["StatefulSet/x-job"]["spec"]["template"]["spec"]["containers"]
    for pod, name in ((driver, "driver"), (executor, "executor")):
        [container] = pod["containers"]
        assert container["name"] == f"spark-kubernetes-{name}"
        assert container["command"][-1] == "/etc/anabranch/spark-pod.sh"
        assert {"name": "state", "persistentVolumeClaim": {"claimName": "state"}} in pod["volumes"]
        assert (container["env"], container["envFrom"]) == (job["env"], job["envFrom"])
    assert driver["containers"][0]["livenessProbe"] == job["livenessProbe"]
    assert [entry["name"] for entry in driver["initContainers"]] == ["rebuild"]
    assert (driver["automountServiceAccountToken"], executor["automountServiceAccountToken"]) == (True, False)
    assert made["RoleBinding/x-job"]["subjects"][0]["name"] == driver["serviceAccountName"]
    [rule] = [rule for rule in made["NetworkPolicy/x"]["spec"]["ingress"] if len(rule["ports"]) > 1]
    labels = spec["executor"]["template"]["metadata"]["labels"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()


CONTROLLER = ("controller.enabled=true", "cluster.adminUrl=")


def variables(made: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the environment of the first container of an object's pods; of secrets the reference."""
    [container] = value_at(made[name], f"{POD}.containers")
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


@pytest.mark.parametrize(
    ("metadata", "replicas", "storage"), [("sqlite", 1, "1Gi"), ("zk://zk1:2181\\,zk2:2181/a", 3, ABSENT)]
)
def test_controller_has_a_volume_or_three_replicas(helm, metadata, replicas, storage):
    made = by_name(helm, *CONTROLLER, f"controller.metadata={metadata}")
    controller = made["StatefulSet/x-controller"]
    assert controller["spec"]["replicas"] == replicas
    assert value_at(controller, "spec.volumeClaimTemplates.0.spec.resources.requests.storage") == storage
    volumes = {volume["name"]: volume for volume in value_at(controller, f"{POD}.volumes")}
    assert ("emptyDir" in volumes.get("state", {})) == (storage is ABSENT)
    assert value_at(controller, f"{POD}.containers.0.livenessProbe.httpGet.path") == "/livez"
    service = made[f"Service/{controller['spec']['serviceName']}"]
    assert service["spec"]["clusterIP"] == "None"
    nodes = json.loads(variables(made, "StatefulSet/x-controller")["ANABRANCH_CONTROLLER__NODES"])
    assert nodes == [f"http://x-controller-{node}.x-controller-nodes.scaling.svc:8080" for node in range(replicas)]
    own = variables(made, "StatefulSet/x-controller")["ANABRANCH_CONTROLLER_NODE_URL"]
    assert own.replace("$(POD_NAME)", "x-controller-0") == nodes[0]


def test_every_process_calls_our_controller_with_its_token(helm):
    made = by_name(helm, *CONTROLLER, "collectors.kafka.enabled=true", "controller.metadata=zk://zk1:2181/a")
    controller = variables(made, "StatefulSet/x-controller")
    assert controller["ANABRANCH_CONTROLLER__SEGMENTS"] == "kafka"
    for name in ("Deployment/x-executor", "Deployment/x-kafka-collector", "StatefulSet/x-job"):
        own = variables(made, name)
        assert own["ANABRANCH_CONTROLLER_URL"] == "http://x-controller.scaling.svc:8080"
        for key in ("ANABRANCH_CONTROLLER_TOKEN", "ANABRANCH_CONTROLLER__NODES"):
            assert own[key] == controller[key]


def test_controller_is_open_to_the_release_and_named_peers(helm):
    [rule] = [
        rule
        for rule in by_name(helm, *CONTROLLER, "networkPolicy.controllerFrom[0].podSelector.matchLabels.app=shop")[
            "NetworkPolicy/x"
        ]["spec"]["ingress"]
        if rule["ports"][0]["port"] == 8080
    ]
    own, shop = (peer["podSelector"]["matchLabels"] for peer in rule["from"])
    assert own == {"app.kubernetes.io/name": "anabranch", "app.kubernetes.io/instance": "x"}
    assert shop == {"app": "shop"}

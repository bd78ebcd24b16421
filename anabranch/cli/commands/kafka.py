"""`anabranch kafka`: the Kafka topics that job, collectors and executor meet in, made and checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from anabranch.cli.context import Context
from anabranch.cli.exits import FOUND, Unreachable
from anabranch.query.wording import quantity
from schemas.kafka.topics import BUNDLE_TOPICS, KAFKA_TOPICS, REPLICAS, KafkaTopic
from schemas.printable import printable

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata, TopicMetadata  # type: ignore[attr-defined]

SECONDS = 20.0


@click.group("kafka")
def kafka_command() -> None:
    """Create and check the Kafka topics at [kafka] bootstrap: three, and two more with [bundles] enabled."""


@kafka_command.command("create")
@click.option("--replication-factor", type=click.IntRange(1), default=REPLICAS, show_default=True)
@click.option(
    "--output",
    type=click.Choice(["text", "strimzi"]),
    default="text",
    show_default=True,
    help="strimzi: print KafkaTopic resources instead, and call nobody.",
)
@click.option("--cluster", default="kafka", show_default=True, metavar="NAME", help="Strimzi's name of the cluster.")
@click.pass_obj
def create_missing(context: Context, replication_factor: int, output: str, cluster: str) -> None:
    """Create the topics that are missing; those that exist stay as they are."""
    topics = wanted_topics(context)
    if output == "strimzi":
        from yaml import safe_dump_all

        resources = [strimzi_topic(topic, replication_factor, cluster) for topic in topics]
        click.echo(safe_dump_all(resources, sort_keys=False), nl=False)
        return
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    admin = admin_client(context)
    existing = metadata_at(context, admin).topics
    new = [
        NewTopic(topic.name, topic.partitions, replication_factor, config=topic.config_of(replication_factor))
        for topic in topics
        if topic.name not in existing
    ]
    failed, limits = 0, {"operation_timeout": SECONDS, "request_timeout": SECONDS}
    for name, future in (admin.create_topics(new, **limits) if new else {}).items():
        try:
            future.result(SECONDS + 10)
            click.echo(f"created {name}")
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                failed += 1
                click.echo(f"{name} was not created: {printable(error.args[0].str())}", err=True)
    for topic in topics:
        if topic.name in existing:
            click.echo(f"{topic.name} exists: anabranch kafka check compares it")
    if failed:
        raise click.exceptions.Exit(FOUND)


@kafka_command.command("check")
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help=f"Least replicas of each topic; without it {REPLICAS}, or as many as there are brokers.",
)
@click.pass_obj
def check_topics(context: Context, replication_factor: int | None) -> None:
    """Compare partitions, replicas and settings of the topics with what `kafka create` would make.

    Exit code 1: something is wrong.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

    admin = admin_client(context)
    metadata = metadata_at(context, admin)
    topics, existing = wanted_topics(context), metadata.topics
    replicas = replication_factor or min(REPLICAS, len(metadata.brokers))
    problems = [f"{topic.name} is missing: anabranch kafka create" for topic in topics if topic.name not in existing]
    there = [topic for topic in topics if topic.name in existing]
    asked = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in there]
    answers = admin.describe_configs(asked, request_timeout=SECONDS) if asked else {}
    for topic, resource in zip(there, asked, strict=True):
        problems += size_problems(topic, existing[topic.name], replicas)
        try:
            settings = {key: entry.value for key, entry in answers[resource].result(SECONDS + 10).items()}
        except KafkaException as error:
            problems.append(f"settings of {topic.name} cannot be read: {printable(error.args[0].str())}")
            continue
        problems += config_problems(topic, settings, replicas)
    for problem in problems:
        click.echo(problem)
    click.echo(f"{len(topics)} topics at {context.settings.kafka.bootstrap}: {len(problems) or 'no'} problems")
    if problems:
        raise click.exceptions.Exit(FOUND)


def wanted_topics(context: Context) -> tuple[KafkaTopic, ...]:
    """Return the topics that these settings need."""
    return (*KAFKA_TOPICS, *(BUNDLE_TOPICS if context.settings.bundles.enabled else ()))


def size_problems(topic: KafkaTopic, actual: TopicMetadata, replicas: int) -> list[str]:
    """Return what a topic has too few of; more are fine."""
    partitions, problems = actual.partitions.values(), []
    if len(partitions) < topic.partitions:
        problems.append(f"{topic.name} has {len(partitions)} partitions, {topic.partitions} are wanted")
    least = min((len(partition.replicas) for partition in partitions), default=replicas)
    if least < replicas:
        problems.append(
            f"{topic.name} has partitions with {quantity(least, 'replica')}, {replicas} are wanted: add them with "
            "kafka-reassign-partitions.sh; if so few are meant, say --replication-factor"
        )
    return problems


def config_problems(topic: KafkaTopic, settings: dict[str, str], replicas: int) -> list[str]:
    """Return what a topic's settings get wrong; longer retention and larger messages are fine."""
    problems = []
    for key, wanted in topic.config_of(replicas).items():
        actual = settings.get(key, "")
        if wanted.isdigit():
            is_right = actual == "-1" if key == "retention.ms" else False
            is_right = is_right or (actual.isdigit() and int(actual) >= int(wanted))
        else:
            is_right = actual == wanted
        if not is_right:
            problems.append(f"{topic.name}: {key} is {printable(actual) or 'not set'}, {wanted} is wanted")
    return problems


def strimzi_topic(topic: KafkaTopic, replicas: int, cluster: str) -> dict[str, object]:
    """Return a topic as a resource for Strimzi's topic operator."""
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": {"name": topic.name, "labels": {"strimzi.io/cluster": cluster}},
        "spec": {"partitions": topic.partitions, "replicas": replicas, "config": topic.config_of(replicas)},
    }


def admin_client(context: Context) -> AdminClient:
    """Return a client of the configured Kafka."""
    from confluent_kafka.admin import AdminClient

    context.warn("stream")
    return AdminClient(context.settings.kafka_connection().librdkafka({"log_level": 0}))


def metadata_at(context: Context, admin: AdminClient) -> ClusterMetadata:
    """Return the topics and brokers that exist; raises `Unreachable`."""
    from confluent_kafka import KafkaException

    try:
        return admin.list_topics(timeout=SECONDS)
    except KafkaException as error:
        reason = printable(error.args[0].str())
        raise Unreachable(
            f"Kafka at {context.settings.kafka.bootstrap} does not answer: {reason}; see [kafka] bootstrap"
        ) from error

"""The commands of docs/deploy.md that give each part its rights in Kafka, carried out as they stand there."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from schemas.kafka.connection import KafkaConnection

PAGE = Path(__file__).parents[1] / "docs" / "deploy.md"
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def commands() -> list[list[str]]:
    """What stands after `$allow` on each line of the page, in words."""
    return [shlex.split(line)[1:] for line in PAGE.read_text().splitlines() if line.startswith("$allow ")]


def grant(kafka: KafkaConnection) -> None:
    """Carries them out, as an administrator; raises `KafkaException` when the broker refuses one."""
    bindings = [binding for command in commands() for binding in _bindings(command)]
    admin = AdminClient(kafka.librdkafka())
    for made in admin.create_acls(bindings).values():
        made.result(30)


def _bindings(words: list[str]) -> Iterator[AclBinding]:
    command = argparse.ArgumentParser()
    command.add_argument("principal")
    command.add_argument("--operation", action="append", default=[])
    command.add_argument("--topic", action="append", default=[])
    command.add_argument("--group", action="append", default=[])
    command.add_argument("--cluster", action="store_true")
    command.add_argument("--resource-pattern-type", choices=["prefixed"])
    read = command.parse_args(words)
    pattern = ResourcePatternType.PREFIXED if read.resource_pattern_type else ResourcePatternType.LITERAL
    resources = [
        *((ResourceType.TOPIC, name, pattern) for name in read.topic),
        *((ResourceType.GROUP, name, pattern) for name in read.group),
        *([(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL)] if read.cluster else []),
    ]
    for kind, name, how in resources:
        for operation in read.operation:
            may = AclOperation[_WORD.sub("_", operation).upper()]
            yield AclBinding(kind, name, how, read.principal, "*", may, AclPermissionType.ALLOW)

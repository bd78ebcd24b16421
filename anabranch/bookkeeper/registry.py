"""Registry of BookKeeper clusters in Pulsar's metadata store: clusters, bootstrap record, directive.

Source: PIP-477 "Metadata nodes": `/admin/bookie-clusters/NAME`, `…/bootstrap` and `…/switch-target`. They are written
in one transaction or not at all. Every transaction also raises the version of the folder itself, so that of two
operators who read the same registry only one writes: at every instant one cluster is ACTIVE (I12).
"""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from anabranch.bookkeeper.metadata import PulsarMetadata, ZnodeRecord, ZnodeWrite
from decisions.bookkeeper.registry import RESERVED
from schemas.bookie_answers import BookieAnswer
from schemas.bookies import Bootstrap, ClusterEntry, Directive

REGISTRY_PATH = "/admin/bookie-clusters"
DIRECTIVE, BOOTSTRAP, ORCHESTRATOR = "switch-target", "bootstrap", "orchestrator"


class BadRegistry(RuntimeError):
    """A znode of the registry cannot be read; the message says which, and why."""


@dataclass(frozen=True)
class Registry:
    """Registry as it was read."""

    clusters: tuple[ClusterEntry, ...] = ()
    bootstrap: Bootstrap | None = None
    directive: Directive | None = None
    version: int | None = None
    """Of the folder; None: there is none yet."""


class RegistryStore:
    """The registry of one Pulsar cluster."""

    def __init__(self, metadata: PulsarMetadata, path: str = REGISTRY_PATH) -> None:
        """`path` is the folder of the registry."""
        self.metadata, self.path = metadata, path

    def read(self) -> Registry:
        """All of it. Raises `BadRegistry`, and what `PulsarMetadata.read` raises."""
        # The folder first: if anything changes afterwards, its version is too old for a write.
        if (folder := self.metadata.read(self.path)) is None:
            return Registry()
        names = [name for name in self.metadata.children(self.path) if name not in RESERVED]
        records = [self.metadata.read(f"{self.path}/{name}") for name in names]
        return Registry(
            tuple(self._cluster(record) for record in records if record is not None),
            self._bootstrap(self.metadata.read(f"{self.path}/{BOOTSTRAP}")),
            self._directive(self.metadata.read(f"{self.path}/{DIRECTIVE}")),
            folder.version,
        )

    def write(self, answer: BookieAnswer, before: Registry, also: tuple[ZnodeWrite, ...] = ()) -> None:
        """Write a command's answer, decided on `before`, in one transaction.

        `also` has further expectations. Raises `MetadataChanged` if anything has changed since `before`, and what
        `PulsarMetadata.write` raises.
        """
        writes = [*also]
        if answer.registry is not None:
            writes += self._changes(before, answer.registry)
        if answer.bootstrap is not None and before.bootstrap is None:
            writes.append(ZnodeWrite(f"{self.path}/{BOOTSTRAP}", _json_bytes(answer.bootstrap), None))
        if answer.directive is not None:
            version = before.directive.version if before.directive else None
            writes.append(ZnodeWrite(f"{self.path}/{DIRECTIVE}", _json_bytes(answer.directive), version))
        if (folder := before.version) is None:
            self.metadata.ensure(self.path)
            folder = 0
        self.metadata.write([*writes, ZnodeWrite(self.path, b"", folder)])

    def _changes(self, before: Registry, after: list[ClusterEntry]) -> list[ZnodeWrite]:
        there = {cluster.name: cluster for cluster in before.clusters}
        writes = []
        for cluster in after:
            former = there.pop(cluster.name, None)
            if former is None or former.model_copy(update={"version": cluster.version}) != cluster:
                version = former.version if former else None
                writes.append(ZnodeWrite(f"{self.path}/{cluster.name}", _json_bytes(cluster), version))
        writes += [
            ZnodeWrite(f"{self.path}/{name}", None, cluster.version, delete=True) for name, cluster in there.items()
        ]
        return writes

    def _cluster(self, record: ZnodeRecord) -> ClusterEntry:
        name = record.path.rpartition("/")[2]
        entry: ClusterEntry = _read_record(ClusterEntry, record, name=name)
        return entry

    def _bootstrap(self, record: ZnodeRecord | None) -> Bootstrap | None:
        return None if record is None else _read_record(Bootstrap, record)

    def _directive(self, record: ZnodeRecord | None) -> Directive | None:
        return None if record is None else _read_record(Directive, record)


def _read_record(model: Any, record: ZnodeRecord, **overrides: str) -> Any:
    try:
        content = json.loads(record.content)
        if not isinstance(content, dict):
            raise ValueError("no JSON object")
        if "version" in model.model_fields:
            overrides = {**overrides, "version": record.version}  # type: ignore[dict-item]
        return model.model_validate_json(json.dumps({**content, **overrides}))
    except ValidationError as error:
        where = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False)
        )
        raise BadRegistry(f"{record.path} cannot be read: {where}") from None
    except (ValueError, RecursionError) as error:
        raise BadRegistry(f"{record.path} cannot be read: {error}") from None


def _json_bytes(model: ClusterEntry | Bootstrap | Directive) -> bytes:
    return model.model_dump_json(by_alias=True, exclude_none=True, exclude={"version"}).encode()

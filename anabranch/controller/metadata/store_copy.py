"""Copy all metadata between stores, SQLite and ZooKeeper, while no controller runs.

Ephemerals are not copied. A mark in the target is written first and removed last, after everything was read back:
controllers refuse a store with the mark, and the next copy starts over. The copier registers as a node in both stores
meanwhile, so that no controller starts.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import zip_longest
from typing import NamedTuple

from anabranch.controller.errors import StartError
from anabranch.controller.metadata import store_paths
from anabranch.controller.metadata.base import (
    ROOT,
    Append,
    Delete,
    InvalidTreeChange,
    MetadataStore,
    Op,
    Put,
    StoreError,
)
from anabranch.controller.metadata.factory import open_metadata
from schemas.settings.root import Settings

MAX_OPS, MAX_COMMIT_BYTES = 200, 500_000
"""Limits of one commit. (A single node may be larger; ZooKeeper has the last word.)"""
_MAX_READS = 200
_PROGRESS_EVERY = 10_000

NodeValue = tuple[str, bytes]
"""Path and value."""


class StoreContents(NamedTuple):
    """Contents of the target."""

    topics: int
    nodes: int
    announcements: int
    """Announcements waiting for Kafka; not counted in `nodes`."""
    was_there: bool
    """True if it had been copied before, and nothing was written."""


def copy_metadata(settings: Settings, source: str, target: str, say: Callable[[str], None]) -> StoreContents:
    """Copy from `source` to `target`, each a value of `anabranch.controller.metadata`.

    `sqlite` means `controller.database`. Raises `StartError` when a controller runs on either, the source is empty, the
    target is not, or one of them fails; the copy can then be repeated.
    """
    from_settings, to_settings = _at(settings, source), _at(settings, target)
    file = settings.path(settings.controller.database)
    if source == "sqlite" and not file.exists():
        raise StartError(f"no database {file} to copy from: see controller.database")
    with ExitStack() as stack:
        source_store = stack.enter_context(closing(open_metadata(from_settings)))
        target_store = stack.enter_context(closing(open_metadata(to_settings)))
        try:
            return copy(source_store, target_store, source, target, say)
        except InvalidTreeChange as error:
            raise StartError(f"{target} does not take what is in {source}: {error}") from error
        except StoreError as error:
            raise StartError(f"the copy is not complete, repeat it: {error}") from error


def copy(
    source: MetadataStore, target: MetadataStore, source_name: str, target_name: str, say: Callable[[str], None]
) -> StoreContents:
    """Copy all of `source` into the empty `target` and read it back. Raises `StartError` and `StoreError`."""
    for nodes, name in ((source, source_name), (target, target_name)):
        _keep_controllers_out(nodes, name)
    if source.get(store_paths.COPYING):
        raise StartError(f"{source_name} is itself a copy that was not finished: copy it from where it came")
    if not any(value for _, value in _walk(source)):
        raise StartError(f"there is nothing in {source_name} to copy")
    if target.get(store_paths.COPYING) is None:
        if any(value for _, value in _walk(target)):
            if _first_difference(source, target) is None:
                return _counted(target, was_there=True)
            raise StartError(f"{target_name} is not empty: choose another place")
        target.put(store_paths.COPYING, f"from {source_name}, process {os.getpid()}".encode())
    else:
        say(f"a copy to {target_name} was not finished: starting again")
    _empty(target)
    _write(source, target, say)
    say("reading it back")
    if (different := _first_difference(source, target)) is not None:
        raise StartError(f"{different} differs in {target_name}: somebody else wrote at the same time; repeat the copy")
    copied = _counted(target, was_there=False)
    target.delete(store_paths.COPYING)
    return copied


def _at(settings: Settings, metadata: str) -> Settings:
    return settings.model_copy(update={"controller": settings.controller.model_copy(update={"metadata": metadata})})


def _keep_controllers_out(nodes: MetadataStore, name: str) -> None:
    """Register first, then look: of two processes starting at the same time, at least one sees the other."""
    if nodes.create_ephemeral(store_paths.COPIER, str(os.getpid()).encode()) is None:
        raise StartError(f"{name} is being copied by another process, or was a moment ago: try again in a minute")
    running = [
        store_paths.decode(node)
        for node in nodes.children(store_paths.NODES)
        if f"{store_paths.NODES}/{node}" != store_paths.COPIER
    ]
    if running:
        raise StartError(
            f"controllers run on {name}, or did a moment ago: {', '.join(sorted(running))}; stop them first"
        )


def _walk(nodes: MetadataStore, above: str = ROOT) -> Iterator[NodeValue]:
    """Yield all nodes to be copied, each before those below it, in the order of names."""
    top = "" if above == ROOT else above
    names = nodes.children(above)
    for start in range(0, len(names), _MAX_READS):
        paths = [f"{top}/{name}" for name in names[start : start + _MAX_READS]]
        for path, node in zip(paths, nodes.get_all(paths), strict=True):
            if node is not None and not store_paths.stays_behind(path):
                yield path, node.value
                yield from _walk(nodes, path)


def _write(source: MetadataStore, target: MetadataStore, say: Callable[[str], None]) -> None:
    ops: list[Op] = []
    size = 0
    for number, (path, value) in enumerate(_walk(source), 1):
        if store_paths.is_announcement(path):
            # The target numbers announcements in commit order, so each gets its own commit.
            target.commit(*ops)
            target.commit(Append(store_paths.OUTBOX, value))
            ops, size = [], 0
            continue
        size += len(path) + len(value)
        if ops and (len(ops) >= MAX_OPS or size > MAX_COMMIT_BYTES):
            target.commit(*ops)
            ops, size = [], len(path) + len(value)
        ops.append(Put(path, value))
        if number % _PROGRESS_EVERY == 0:
            say(f"{number} nodes copied")
    target.commit(*ops)


def _empty(target: MetadataStore) -> None:
    paths = [path for path, _ in _walk(target)]
    paths.reverse()
    target.commit_in_parts([], [Delete(path) for path in paths])


def _first_difference(source: MetadataStore, target: MetadataStore) -> str | None:
    """Return the first path that differs, None if none does; announcements are compared in their order."""
    for node, other in zip_longest(_walk(source), _walk(target)):
        if node is None or other is None:
            return str((node or other)[0])
        is_announced = store_paths.is_announcement(node[0]) and store_paths.is_announcement(other[0])
        if node[1] != other[1] or (node[0] != other[0] and not is_announced):
            return str(min(node[0], other[0]))
    return None


def _counted(nodes: MetadataStore, was_there: bool) -> StoreContents:
    topics = count = announcements = 0
    for path, value in _walk(nodes):
        if store_paths.is_announcement(path):
            announcements += 1
        else:
            count += 1
            topics += store_paths.is_topic(path) and bool(value)
    return StoreContents(topics, count, announcements, was_there)

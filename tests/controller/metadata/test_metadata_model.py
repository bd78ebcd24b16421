"""Random commits on both stores and on a model that is a dict: the same answers, the same trees."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.metadata.base import (
    ABSENT,
    Check,
    Delete,
    InvalidTreeChange,
    MetadataStore,
    Op,
    Put,
    VersionConflict,
)
from anabranch.controller.metadata.sqlite import SqliteStore
from anabranch.controller.metadata.zookeeper import ZooKeeperStore
from tests.examples import examples
from tests.harness.zookeeper import EmbeddedZooKeeper

NEVER_GIVEN = 1 << 60
"""Stands for the version of a commit that wrote nothing."""
PATHS = ["/a", "/b", "/a/x", "/a/x/y", "/b/z"]


class ModelNode(NamedTuple):
    """A node of the model; `written` numbers the commit that wrote it."""

    value: bytes
    written: int
    ephemeral: bool


@dataclass
class Model:
    """What the interface promises, in plain words: all in order on a copy, which is kept if nothing was wrong."""

    nodes: dict[str, ModelNode] = field(default_factory=dict)
    commits: int = 0

    def commit(self, *ops: Op, ephemeral: bool = False) -> object:
        nodes, refused = dict(self.nodes), None
        number = self.commits + 1
        for op in ops:
            found = nodes.get(op.path)
            expected = op.version if isinstance(op, Check) else op.expected_version
            if expected is not None and expected != (found.written if found else ABSENT):
                return ("conflict", op.path)
            if isinstance(op, Delete):
                if not found:
                    return ("conflict", op.path)
                if any(path.startswith(op.path + "/") for path in nodes):
                    refused = refused or op.path
                del nodes[op.path]
            elif isinstance(op, Put):
                names = op.path.split("/")
                line = ["/".join(names[:length]) for length in range(2, len(names) + 1)]
                for above, path in zip(["", *line], line, strict=False):
                    if path not in nodes and above in nodes and nodes[above].ephemeral:
                        refused = refused or path
                    if path not in nodes:
                        nodes[path] = ModelNode(b"", number, False)
                is_ephemeral = ephemeral or (found is not None and found.ephemeral)
                nodes[op.path] = ModelNode(op.value, number, is_ephemeral)
        if refused:
            return ("refused", refused)
        self.nodes, self.commits = nodes, number
        return [nodes[op.path].written if op.path in nodes else ABSENT for op in ops]

    def create_ephemeral(self, path: str, value: bytes) -> object:
        found = self.nodes.get(path)
        if found:
            return found.written if found.ephemeral and found.value == value else None
        answer = self.commit(Put(path, value), ephemeral=True)
        return answer[0] if isinstance(answer, list) else answer


class Expect(NamedTuple):
    """Which version an operation expects: the current one, that of an earlier commit, none, or any."""

    what: str
    back: int = 0


class Draft(NamedTuple):
    """An operation before its version is known."""

    kind: str
    path: str
    expect: Expect


EXPECTS = st.one_of(
    st.sampled_from([Expect("now"), Expect("any"), Expect("absent")]),
    st.builds(Expect, st.just("old"), st.integers(1, 3)),
)
DRAFTS = st.builds(Draft, st.sampled_from(["put", "put", "delete", "check"]), st.sampled_from(PATHS), EXPECTS)
COMMITS = st.lists(DRAFTS, min_size=1, max_size=4, unique_by=lambda draft: draft.path)
EPHEMERALS = st.builds(Draft, st.just("ephemeral"), st.sampled_from(PATHS), st.just(Expect("any"))).map(
    lambda one: [one]
)
ACTS = st.lists(st.one_of(COMMITS, COMMITS, COMMITS, EPHEMERALS), min_size=1, max_size=12)


class Checked:
    """A store next to the model: its versions are its own, so they are compared by the commit that gave them."""

    def __init__(self, store: MetadataStore, top: str) -> None:
        self.store, self._top = store, top
        self._versions: dict[int, int] = {ABSENT: ABSENT}

    def do(self, ops: list[Op], ephemeral: bool, answer: object) -> None:
        mine = [self._translate(op) for op in ops]
        try:
            if ephemeral:
                got: object = self.store.create_ephemeral(mine[0].path, b"e")
            else:
                got = self.store.commit(*mine)
        except VersionConflict as error:
            got = ("conflict", error.path.removeprefix(self._top))
        except InvalidTreeChange as error:
            got = ("refused", error.path.removeprefix(self._top))
        for written, version in zip(_list(answer), _list(got), strict=False):
            if isinstance(written, int) and isinstance(version, int):
                assert written in self._versions or version not in self._versions.values(), "used twice"
                self._versions.setdefault(written, version)
        translated = [self._versions.get(one, one) if isinstance(one, int) else one for one in _list(answer)]
        assert _list(got) == translated

    def tree(self, nodes: dict[str, ModelNode]) -> None:
        for path in PATHS:
            found = self.store.get(self._top + path)
            expected = nodes.get(path)
            assert (found.value if found else None) == (expected.value if expected else None), path
            if found and expected:
                assert found.version == self._versions.setdefault(expected.written, found.version)
            below = {one.split("/")[-1] for one in nodes if one.rpartition("/")[0] == path}
            assert self.store.children(self._top + path) == sorted(below)

    def _translate(self, op: Op) -> Op:
        path = self._top + op.path
        if isinstance(op, Check):
            return Check(path, self._versions.get(op.version, NEVER_GIVEN))
        expected = None if op.expected_version is None else self._versions.get(op.expected_version, NEVER_GIVEN)
        return Put(path, op.value, expected) if isinstance(op, Put) else Delete(path, expected)


def _list(answer: object) -> list[object]:
    return list(answer) if isinstance(answer, (list, tuple)) else [answer]


def _finish(draft: Draft, model: Model, number: int) -> Op:
    found = model.nodes.get(draft.path)
    expected = {
        "any": None,
        "absent": ABSENT,
        "now": found.written if found else ABSENT,
        "old": max(1, model.commits - draft.expect.back) if model.commits else ABSENT,
    }[draft.expect.what]
    if draft.kind == "delete":
        return Delete(draft.path, expected)
    if draft.kind == "check":
        return Check(draft.path, ABSENT if expected is None else expected)
    return Put(draft.path, b"%d" % number, expected)


@pytest.fixture(scope="module")
def stores(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[MetadataStore]]:
    """One of each kind for all examples; each example has a tree of its own."""
    both: list[MetadataStore] = [
        SqliteStore(tmp_path_factory.mktemp("model") / "metadata.db"),
        ZooKeeperStore(zookeeper.address, "/model"),
    ]
    yield both
    for store in both:
        store.close()


_tops = (f"/t{number}" for number in itertools.count())


@examples(15)
@given(acts=ACTS)
def test_random_commits_match_the_model(stores: list[MetadataStore], acts: list[list[Draft]]) -> None:
    top, model = next(_tops), Model()
    checked = [Checked(store, top) for store in stores]
    for number, drafts in enumerate(acts):
        ops = [_finish(draft, model, number) for draft in drafts]
        ephemeral = drafts[0].kind == "ephemeral"
        answer = model.create_ephemeral(ops[0].path, b"e") if ephemeral else model.commit(*ops)
        for one in checked:
            one.do(ops, ephemeral, answer)
            one.tree(model.nodes)

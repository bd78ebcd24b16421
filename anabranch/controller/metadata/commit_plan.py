"""Plan of a commit, derived from its operations and the versions that were read. Pure.

Both stores detect conflicts here, so they agree on the path reported and on the creation of the nodes above.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from anabranch.controller.metadata.base import ABSENT, Append, Check, Delete, Op, Put, VersionConflict, ancestors

_MADE_HERE = 0
"""Version of a node that this very commit creates: no operation can expect it."""


class NodeAction(enum.Enum):
    """Effect on one node."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    KEEP = "keep"
    APPEND = "append"
    """Create a node below `path`."""


@dataclass(frozen=True)
class PlanStep:
    """One change. `expects`: version that it relies on; None: any, ABSENT: no such node."""

    action: NodeAction
    path: str
    value: bytes = b""
    expects: int | None = None


def paths_to_read(ops: Iterable[Op]) -> list[str]:
    """Return the paths whose versions `plan` needs: those of the operations, and those above writes."""
    paths: dict[str, None] = {}
    for op in ops:
        if isinstance(op, (Put, Append)):
            paths.update(dict.fromkeys(ancestors(op.path)))
        paths[op.path] = None
    return list(paths)


def plan(ops: Iterable[Op], versions: Mapping[str, int]) -> list[PlanStep]:
    """Return the steps in order; a node missing in `versions` does not exist.

    Raises `VersionConflict` with the first path that does not have its expected version.
    """
    now = dict(versions)
    steps: list[PlanStep] = []
    for op in ops:
        version = now.get(op.path, ABSENT)
        if isinstance(op, Append):
            for above in [*ancestors(op.path), op.path]:
                if above not in now:
                    steps.append(PlanStep(NodeAction.CREATE, above))
                    now[above] = _MADE_HERE
            steps.append(PlanStep(NodeAction.APPEND, op.path, op.value))
            continue
        expected = op.version if isinstance(op, Check) else op.expected_version
        if expected is not None and version != expected:
            raise VersionConflict(op.path)
        if isinstance(op, Check):
            steps.append(PlanStep(NodeAction.KEEP, op.path, expects=expected))
        elif isinstance(op, Delete):
            if version == ABSENT:
                raise VersionConflict(op.path)
            steps.append(PlanStep(NodeAction.REMOVE, op.path, expects=expected))
            del now[op.path]
        else:
            for above in ancestors(op.path):
                if above not in now:
                    steps.append(PlanStep(NodeAction.CREATE, above))
                    now[above] = _MADE_HERE
            action = NodeAction.CREATE if version == ABSENT else NodeAction.WRITE
            steps.append(PlanStep(action, op.path, op.value, expected))
            now[op.path] = _MADE_HERE
    return steps

"""The members as rows of a table of the lake, which is replaced as a whole (`lake.register`).

Stage: between `members` and `lake.register`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from executor.shards.members import Member, Members
from lake.register import EXECUTORS, Register, read_register

_SCHEMA = pa.schema([
    ("executor", pa.string()), ("mode", pa.string()), ("shards", pa.int32()), ("seconds", pa.float64()),
    ("since", pa.timestamp("us", tz="UTC")), ("beat", pa.int64()), ("held", pa.list_(pa.int32())),
    ("tokens", pa.list_(pa.int64())), ("beat_at", pa.timestamp("us", tz="UTC")),
])  # fmt: skip


class MemberRegister:
    """The register of a lake. One thread uses it."""

    def __init__(self, lake: str) -> None:
        """Raises what Delta raises."""
        self._register = Register(lake, EXECUTORS, _SCHEMA)

    def read(self) -> tuple[int, Members]:
        """Its number, and the members. Raises what Delta raises."""
        number, rows = self._register.read()
        return number, _members(rows)

    def replace(self, members: Members) -> int:
        """Replaces what was read last. Raises `Raced`, or what Delta raises."""
        return self._register.replace([
            {
                "executor": one.name, "mode": one.mode, "shards": one.of, "seconds": one.seconds, "since": one.since,
                "beat": one.beat, "held": list(one.shards), "tokens": [token for _, token in one.tokens],
                "beat_at": one.at,
            }
            for one in members
        ])  # fmt: skip


def read_members(lake: str) -> Members:
    """Who is in the register of a lake, alive or not. Raises what Delta raises."""
    return _members(read_register(lake, EXECUTORS))


def _members(rows: list[dict[str, Any]]) -> Members:
    return tuple(
        Member(row["executor"], row["mode"], row["shards"], row["seconds"], row["since"], row["beat"],
               tuple(zip(row["held"], row["tokens"], strict=True)), row["beat_at"])
        for row in sorted(rows, key=lambda row: (row["since"], row["executor"]))
    )  # fmt: skip

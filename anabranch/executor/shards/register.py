"""Members as rows of a lake table that is replaced as a whole (`lake.register`).

Stage: under `holding`, which divides the shards among the members.
"""

from typing import Any

import pyarrow as pa

from anabranch.executor.shards.members import Member, Members
from lake.files import is_remote
from lake.register import EXECUTORS, TableRegister, read_register

_SCHEMA = pa.schema(
    [
        ("executor", pa.string()),
        ("mode", pa.string()),
        ("shards", pa.int32()),
        ("seconds", pa.float64()),
        ("since", pa.timestamp("us", tz="UTC")),
        ("beat", pa.int64()),
        ("held", pa.list_(pa.int32())),
        ("tokens", pa.list_(pa.int64())),
        ("beat_at", pa.timestamp("us", tz="UTC")),
    ]
)


class MemberRegister:
    """Member register of a lake. Used by one thread."""

    def __init__(self, lake: str) -> None:
        """Raises Delta's errors."""
        self._register = TableRegister(lake, EXECUTORS, _SCHEMA)
        self.is_remote = is_remote(lake)
        """Whether each look and each heartbeat are requests to an object store."""

    def read(self) -> tuple[int, Members]:
        """Return the register's version and the members. Raises Delta's errors."""
        number, rows = self._register.read()
        return number, _members(rows)

    def replace(self, members: Members) -> int:
        """Replace the members read last. Raises `Raced`, or Delta's errors."""
        return self._register.replace(
            [
                {
                    "executor": member.name,
                    "mode": member.mode,
                    "shards": member.of,
                    "seconds": member.seconds,
                    "since": member.since,
                    "beat": member.beat,
                    "held": list(member.shards),
                    "tokens": [token for _, token in member.tokens],
                    "beat_at": member.at,
                }
                for member in members
            ]
        )


def read_members(lake: str) -> Members:
    """Return all registered members of a lake, alive or not. Raises Delta's errors."""
    return _members(read_register(lake, EXECUTORS))


def _members(rows: list[dict[str, Any]]) -> Members:
    return tuple(
        Member(
            row["executor"],
            row["mode"],
            row["shards"],
            row["seconds"],
            row["since"],
            row["beat"],
            tuple(zip(row["held"], row["tokens"], strict=True)),
            row["beat_at"],
        )
        for row in sorted(rows, key=lambda row: (row["since"], row["executor"]))
    )

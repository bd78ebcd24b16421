"""Packed rows of a bucket in arrival order, in parts that fit in memory.

Stage: in the operator, before the engine. Spark delivers a bucket's rows unordered. Rows that do not fit in memory
wait in a temporary file until all have arrived.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from engine.kernel.packing import unpacked_size

MAX_PART_BYTES = 8 * 1024 * 1024
"""Limit on the unpacked bytes of a part; rows of one place are never separated, and stay below it."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Limit on the bytes that wait in memory; further rows wait in a file."""


class _Waiting(NamedTuple):
    place: bytes
    number: int
    kind: str
    body: bytes | None
    """None: in the file."""
    start: int
    length: int
    size: int
    """Size in memory once unpacked."""


def in_parts(
    rows: Iterable[Any], part_bytes: int = MAX_PART_BYTES, waiting_bytes: int = MAX_WAITING_BYTES
) -> Iterator[tuple[list[str], list[bytes]]]:
    """Yield the kinds and bodies of `rows` (`engine.kernel.packing.PACKED_DDL`), by place, in parts."""
    with ExitStack() as opened:
        file: IO[bytes] | None = None
        waiting: list[_Waiting] = []
        in_memory = in_file = 0
        for number, row in enumerate(rows):
            position, kind, body = bytes(row.place), row.kind, bytes(row.body)
            if in_memory + len(body) <= waiting_bytes:
                waiting.append(_Waiting(position, number, kind, body, 0, len(body), unpacked_size(kind, body)))
                in_memory += len(body)
                continue
            file = file or opened.enter_context(TemporaryFile(prefix="anabranch-arrivals-"))
            file.write(body)
            waiting.append(_Waiting(position, number, kind, None, in_file, len(body), unpacked_size(kind, body)))
            in_file += len(body)
        waiting.sort(key=lambda entry: (entry.place, entry.number))
        part: list[_Waiting] = []
        for _, of_place in groupby(waiting, lambda entry: entry.place):
            more = list(of_place)
            if part and sum(entry.size for entry in (*part, *more)) > part_bytes:
                yield _read_part(part, file)
                part = []
            part += more
        if part:
            yield _read_part(part, file)


def _read_part(part: list[_Waiting], file: IO[bytes] | None) -> tuple[list[str], list[bytes]]:
    bodies = []
    for entry in part:
        if entry.body is None:
            assert file is not None
            file.seek(entry.start)
            bodies.append(file.read(entry.length))
        else:
            bodies.append(entry.body)
    return [entry.kind for entry in part], bodies

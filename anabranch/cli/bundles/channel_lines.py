"""Parser of a dump of Pulsar's bundle channel: JSON, or what `pulsar-client consume` prints.

Stage: under `anabranch bundles check`. A line is read up to a bound, so a file of one endless line costs no memory.
"""

from collections.abc import Iterator
from typing import IO

from pydantic import ValidationError
from pydantic_core import from_json

from decisions.bundles.channel.records import BundleRecord, State
from schemas.kafka.broker_messages import ChannelMessage, ServiceUnitStateData

MAX_LINE_BYTES = 1 << 20
_FRAME = b"----- got message -----"


def numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Each line with its number, from 1; None for one that is longer than the bound."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (chunk := file.readline(MAX_LINE_BYTES)) and not chunk.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line


def read_line(line: bytes | None) -> tuple[str, BundleRecord | None] | None:
    """Return the bundle and its record, or None without a message. Raises `ValueError` with the fault."""
    if line is None:
        raise ValueError(f"it is longer than {MAX_LINE_BYTES:,} bytes")
    text = line.strip()
    if not text or text == _FRAME:
        return None
    try:
        if match := _split_line(text):
            key, content = match
            value = ServiceUnitStateData.model_validate_json(content) if content not in (b"", b"null") else None
            return key.decode(), _bundle_record(value)
        message = ChannelMessage.model_validate(from_json(text))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "line"
        raise ValueError(f"{where}: {first['msg']}") from None
    return message.key, _bundle_record(message.value)


def _split_line(text: bytes) -> tuple[bytes, bytes] | None:
    """Split a line printed by `pulsar-client` into key and content, in linear time."""
    before, _, after = text.partition(b"key:[")
    key, is_there, after = after.partition(b"], properties:[")
    _, has_content, content = after.partition(b"], content:")
    return (key, content) if is_there and has_content and (not before or before.endswith(b", ")) else None


def _bundle_record(value: ServiceUnitStateData | None) -> BundleRecord | None:
    if value is None:
        return None
    children = tuple((child, to or "") for child, to in (value.split_service_unit_to_dest_broker or {}).items())
    return BundleRecord(
        State(value.state),
        value.version_id,
        value.dst_broker or "",
        value.source_broker or "",
        value.force,
        children,
        value.timestamp,
    )

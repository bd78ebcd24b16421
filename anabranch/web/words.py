"""Names, instants and numbers for a page: text that no browser and no eye is misled by. Pure."""

import json
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlencode

from schemas.ids import topic_parts
from schemas.printable import printable

LONGEST = 96
"""Characters of a name in a row; in full it is in its title, and on its own page."""


def shown(text: object) -> str:
    """Text from outside on one line, control and direction characters spelt out."""
    return printable(str(text))


def shortened(text: object, most: int = LONGEST) -> str:
    """Return text from outside on one line, with its middle cut out if it is longer than `most`."""
    whole = shown(text)
    return whole if len(whole) <= most else f"{whole[: most // 2]}…{whole[-(most // 2) + 1 :]}"


def namespace_of(topic: str) -> str:
    """`tenant/namespace` of a topic; empty for what is no topic's name."""
    try:
        return topic_parts(topic).full_namespace
    except ValueError:
        return ""


def short_name(topic: str) -> str:
    """A topic's name without domain, tenant and namespace."""
    try:
        return topic_parts(topic).name
    except ValueError:
        return topic


def utc(instant: datetime | int | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """An instant, also in milliseconds, in UTC; empty for none."""
    if instant is None:
        return ""
    when = (
        datetime.fromtimestamp(instant / 1000, timezone.utc)
        if isinstance(instant, int)
        else instant.astimezone(timezone.utc)
    )
    return when.strftime(form)


def iso(instant: datetime | int) -> str:
    """Return an instant in ISO 8601, UTC, for addresses and `<time>`."""
    return utc(instant, "%Y-%m-%dT%H:%M:%SZ")


def link(path: str, **query: object) -> str:
    """An address of this page; what is None is left out."""
    parameters = {name: value for name, value in query.items() if value is not None and value != ""}
    return f"{path}?{urlencode(parameters)}" if parameters else path


def observed(seen: str) -> str:
    """Return what an executor saw of a subject (`OutcomeRow.seen`, JSON) as a phrase; empty for nothing."""
    try:
        details = json.loads(seen or "{}")
    except ValueError:
        return seen
    if not isinstance(details, dict):
        return seen
    return ", ".join(phrase for phrase in [_phrase(name, value) for name, value in details.items()] if phrase)


def _phrase(name: str, value: Any) -> str:
    if name == "segments" and isinstance(value, dict):
        return ", ".join(f"segment {number} {_segment(segment)}" for number, segment in value.items())
    if name == "topic" and value == "gone":
        return "no such topic"
    if name == "active":
        return f"{value} active segment{'' if value == 1 else 's'}"
    if name == "pruned" and isinstance(value, list):
        return f"segment {_listed(value)} pruned" if value else ""
    if name == "bundles":
        return "" if value is None else f"{value} bundles in the namespace"
    if name == "owner":
        return f"owner {value}" if value else "no owner"
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return f"{name} {text}"


def _segment(segment: Any) -> str:
    if not isinstance(segment, dict):
        return str(segment)
    children = segment.get("children")
    return str(segment.get("state", "")).lower() + (f" with children {_listed(children)}" if children else "")


def _listed(values: list[Any]) -> str:
    return " and ".join(str(value) for value in values)

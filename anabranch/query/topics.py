"""Topics by the names that people give them: in full, or by a unique ending.

Stage: under commands and pages that take a topic's name.
"""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

import pyarrow.compute as pc

from lake.tables import stream_columns
from schemas.base import MAX_NAME_BYTES
from schemas.ids import EVERY_TOPIC
from schemas.printable import printable
from schemas.tables.rows import DECISIONS, EVENTS, HOLDS

_NEAREST = 5
_COMPARED = 2_000
"""Names that a wrong one is compared with: those that begin as it does first."""
_SCHEME = "topic://"


class UnknownTopic(LookupError):
    """No topic has that name, or several have; the message lists the nearest."""


class NoTopics(UnknownTopic):
    """The lake has no topic at all."""


def topics_on_record(lake: str) -> list[str]:
    """Return every topic with a layout in the lake, sorted. Raises what Delta raises."""
    subjects: set[str] = set()
    for rows in stream_columns(lake, EVENTS, ("subject",), 65_536, pc.field("type") == "layout"):
        subjects.update(pc.unique(rows["subject"]).to_pylist())
    return sorted(subjects - {EVERY_TOPIC})


def topic_on_record(lake: str, text: str) -> str:
    """Return the topic of the lake that a name means. Raises as `find_topic` does, and what Delta raises."""
    if not (names := topics_on_record(lake)):
        raise NoTopics(
            f"no layout of any topic is on record in {lake}: is the job running, with [lake] path there, and does "
            "something announce layouts?"
        )
    return find_topic(names, text)


def find_topic(names: Collection[str], text: str, hints: bool = True) -> str:
    """Return the topic meant by `topic://acme/shop/orders`, `acme/shop/orders`, `shop/orders` or `orders`.

    Raises `UnknownTopic`, and `NoTopics` without any name; with `hints` it names the nearest ones, which takes tens of
    milliseconds.
    """
    if text in names:
        return text
    tail = text.removeprefix(_SCHEME)
    if _SCHEME + tail in names:
        return _SCHEME + tail
    ending = [name for name in names if name.endswith(f"/{tail}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise UnknownTopic(f"{printable(text)} may be each of {_listed(sorted(ending))}: give more of the name")
    if not names:
        raise NoTopics("no layout of any topic is on record: is the job running, and does something announce them?")
    if not hints or len(text) > MAX_NAME_BYTES:
        raise UnknownTopic(f"no topic {printable(text[:MAX_NAME_BYTES])} is on record")
    if not text:
        raise UnknownTopic("the name of the topic is empty")
    last = tail.rpartition("/")[2]
    compared = sorted(names, key=lambda name: not name.rpartition("/")[2].startswith(last[:2]))[:_COMPARED]
    short = {name.rpartition("/")[2]: name for name in compared}
    near = [name for name in compared if name.casefold().endswith(f"/{tail}".casefold())]
    near += [short[match] for match in get_close_matches(last, short, _NEAREST, 0.5) if short[match] not in near]
    near += [match for match in get_close_matches(_SCHEME + tail, compared, _NEAREST, 0.6) if match not in near]
    hint = f"the nearest names are {_listed(near)}" if near else f"there are {len(names)} topics, as {min(names)}"
    raise UnknownTopic(f"no topic {printable(text)} is on record; {printable(hint)}")


def nearest_subjects(lake: str, scope: str) -> list[str] | None:
    """Return None if a subject or namespace of that name is on record, else the nearest names that are.

    A subject is a topic or a cluster. Raises what Delta raises.
    """
    names: set[str] = set()
    # Nearly every subject has held once; those that have not are in the larger tables.
    for table in (HOLDS, DECISIONS, EVENTS):
        subjects: set[str] = set()
        for rows in stream_columns(lake, table, ("subject",), 65_536):
            subjects.update(pc.unique(rows["subject"]).to_pylist())
        names |= subjects | _namespaces(subjects)
        if scope in names:
            return None
    near = get_close_matches(scope, sorted(names), _NEAREST, 0.6)
    short = {name.rpartition("/")[2]: name for name in sorted(names) if ("://" in name) == ("://" in scope)}
    near += [short[match] for match in get_close_matches(scope.rpartition("/")[2], short, _NEAREST, 0.6)]
    return list(dict.fromkeys(near))[:_NEAREST]


def _namespaces(subjects: Iterable[str]) -> set[str]:
    """Return `tenant/namespace` of those that are topics."""
    return {name.removeprefix(_SCHEME).rpartition("/")[0] for name in subjects if name.startswith(_SCHEME)}


def _listed(names: list[str]) -> str:
    more = len(names) - _NEAREST
    return ", ".join(names[:_NEAREST]) + (f" and {more} more" if more > 0 else "")

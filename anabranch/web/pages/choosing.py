"""Selection and order of the topics on the fleet page, read from its address. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from heapq import nsmallest
from typing import Any, Final

from anabranch.web.rows import TopicRow
from anabranch.web.words import link

PAGE: Final = 50
"""Topics on a page."""
FILTERS: Final = {
    "": "all",
    "hot": "hot",
    "waiting": "waiting",
    "thrashing": "thrashing",
    "paused": "paused",
    "stuck": "stuck",
}
ORDERS: Final = {
    "load": "fullest first",
    "name": "name",
    "acted": "last action",
    "segments": "segments",
    "consumers": "consumers",
}
_LONGEST_WORD: Final = 1024
_LONG_AGO = datetime(1, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Choice:
    """Selection in a page's address; parameters that are not understood are ignored."""

    words: str = ""
    only: str = ""
    gate: str = ""
    namespace: str = ""
    order: str = "load"
    page: int = 1

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "Choice":
        """Of an address' query."""
        page = query.get("page", "1")
        return cls(
            words=query.get("q", "")[:_LONGEST_WORD],
            only=query.get("only", "") if query.get("only", "") in FILTERS else "",
            gate=query.get("gate", "")[:_LONGEST_WORD],
            namespace=query.get("namespace", "")[:_LONGEST_WORD],
            order=query.get("order", "load") if query.get("order", "load") in ORDERS else "load",
            page=max(1, int(page)) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
        )

    def link(self, path: str = "/", **changed: Any) -> str:
        """The address of this choice, or of one that differs in something, from its first page."""
        new = replace(self, **{"page": 1, **changed})
        return link(
            path,
            q=new.words,
            only=new.only,
            gate=new.gate,
            namespace=new.namespace,
            order=None if new.order == "load" else new.order,
            page=None if new.page == 1 else new.page,
        )

    def fields(self) -> dict[str, str]:
        """The filters and the order, as a search for other words keeps them."""
        chosen = {
            "only": self.only,
            "gate": self.gate,
            "namespace": self.namespace,
            "order": "" if self.order == "load" else self.order,
        }
        return {name: value for name, value in chosen.items() if value}


@dataclass(frozen=True)
class Chosen:
    """Topics on one page of the list."""

    rows: Sequence[TopicRow]
    found: int
    """Topics that the filters leave, on all pages."""
    pages: int
    page: int
    gates: Sequence[tuple[str, int]]
    """What holds topics, the most frequent first, among those that the other filters leave."""
    namespaces: Sequence[tuple[str, int, int, int]]
    """Of each namespace: its topics, those that are hot, those that wait."""


def choose(
    rows: Sequence[TopicRow], choice: Choice, paused: Collection[str], now: datetime, sees: Callable[[str], bool]
) -> Chosen:
    """`paused`: topics, namespaces and `*` that are; `sees`: whether a namespace may be seen."""
    words = [word.casefold() for word in choice.words.split()]
    seen: dict[str, bool] = {}
    for row in rows:
        if row.namespace not in seen:
            seen[row.namespace] = sees(row.namespace)
    matches = [row for row in rows if seen[row.namespace] and all(word in row.name.casefold() for word in words)]
    folded: dict[str, list[int]] = {}
    for row in matches:
        counts = folded.setdefault(row.namespace, [0, 0, 0])
        counts[0] += 1
        counts[1] += row.is_hot
        counts[2] += bool(row.waiting)
    if choice.namespace:
        matches = [row for row in matches if row.namespace == choice.namespace]
    matches = [row for row in matches if passes(row, choice.only, paused, now)]
    gates = Counter(row.gate for row in matches if row.gate)
    if choice.gate:
        matches = [row for row in matches if row.gate == choice.gate]
    pages = max(1, -(-len(matches) // PAGE))
    page = min(choice.page, pages)
    shown = nsmallest(page * PAGE, matches, key=_ORDER[choice.order])[(page - 1) * PAGE :]
    return Chosen(
        shown,
        len(matches),
        pages,
        page,
        gates.most_common(),
        [(name, *counts) for name, counts in sorted(folded.items())],  # type: ignore[misc]
    )


def passes(row: TopicRow, only: str, paused: Collection[str], now: datetime) -> bool:
    """Return True if a filter keeps the topic."""
    if only == "hot":
        return row.is_hot
    if only == "waiting":
        return bool(row.waiting)
    if only == "thrashing":
        return row.is_thrashing(now)
    if only == "stuck":
        return row.is_stuck(now)
    if only == "paused":
        return is_paused(row, paused)
    return True


def is_paused(row: TopicRow, paused: Collection[str]) -> bool:
    """Return True if the topic is paused: by itself, by namespace, or with everything."""
    return bool(paused) and ("*" in paused or row.namespace in paused or row.name in paused)


_ORDER: Final[Mapping[str, Callable[[TopicRow], Any]]] = {
    "load": lambda row: (-1.0 if row.load is None else row.load) * -1,
    "name": lambda row: row.name,
    "acted": lambda row: -((row.acted_at or _LONG_AGO) - _LONG_AGO).total_seconds(),
    "segments": lambda row: -row.segments,
    "consumers": lambda row: -row.consumers,
}

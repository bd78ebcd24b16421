"""Splits and merges of a topic for a terminal: time downwards, key space across, a row a change.

Stage: drawing, under `anabranch history`. What lies above a segment is what it came from.
"""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anabranch.cli.drawing import SHARED, bar_width, draw_scale, draw_strip
from anabranch.history.lineage.record import River, Turn
from anabranch.query.wording import duration, instant
from decisions.topic.segment import Segment
from schemas.printable import printable

_LONG = 60_000
"""Milliseconds between two turns from which a row of its own says how long nothing happened."""
_TIME_WIDTH = 20


def river_text(river: River, width: int, limit: int) -> RenderableType:
    """The newest `limit` turns in `width` columns."""
    turns = river.turns[-limit:]
    instants = sorted({turn.at for turn in turns})
    texts = {turned_at: "; ".join(turn_words(turn) for turn in turns if turn.at == turned_at) for turned_at in instants}
    aside = min(max([len(text) for text in texts.values()] or [0]), max(width // 3, 12))
    bar = bar_width(width - _TIME_WIDTH - aside - 2)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, width=_TIME_WIDTH)
    table.add_column(no_wrap=True, width=bar)
    table.add_column(overflow="fold", width=aside)
    table.add_row(Text("UTC", "dim"), draw_scale(bar), Text("what, and why", "dim"))
    hidden = river.turns[: len(river.turns) - len(turns)]
    before = hidden[-1].at if hidden else None if turns and turns[0].kind == "created" else river.since
    if before is not None:
        table.add_row(Text(instant(before)), _strip(river, before, bar, ()), Text("as it was", "dim"))
    for instant_ms in [*instants, river.until]:
        if before is not None and instant_ms - before >= _LONG:
            table.add_row(
                Text(f"{'⋮':>10} {duration(instant_ms - before)}", "dim"), _strip(river, before, bar, (), dim=True)
            )
        if instant_ms in texts:
            fresh = tuple(child for turn in turns if turn.at == instant_ms for child in turn.children)
            table.add_row(Text(instant(instant_ms)), _strip(river, instant_ms, bar, fresh), Text(texts[instant_ms]))
        elif instant_ms == river.until:
            table.add_row(
                Text(instant(instant_ms)), _strip(river, instant_ms, bar, ()), Text("end of the record", "dim")
            )
        before = instant_ms
    counts = {kind: sum(turn.kind == kind for turn in river.turns) for kind in ("split", "merge")}
    heading = (
        f"{printable(river.topic)}: {counts['split']} splits, {counts['merge']} merges since {instant(river.since)}"
    )
    parts: list[RenderableType] = [Text(heading, "bold")]
    if hidden:
        parts.append(Text(f"{len(hidden)} earlier turns: --limit, --since or --svg", "dim"))
    return Group(*parts, table)


def turn_words(turn: Turn) -> str:
    """`split 3 -> 7, 8 (msgRateIn)`."""
    parents, children = (
        ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "") for ids in (turn.parents, turn.children)
    )
    if turn.kind == "created":
        return f"created {children}"
    if turn.kind == "made":
        return f"made {children}, parents not on record"
    if turn.kind == "deleted":
        return f"deleted with {parents}"
    why = printable(turn.reason) if turn.reason else "not by Anabranch"
    return f"{turn.kind} {parents} -> {children} ({why})"


def _strip(river: River, instant_ms: int, width: int, fresh: tuple[int, ...], *, dim: bool = False) -> Text:
    there = [Segment(reach.segment_id, reach.start, reach.end) for reach in river.reaches if reach.is_there(instant_ms)]
    if not dim:
        return draw_strip(there, width, [segment for segment in there if segment.segment_id in fresh])
    edges = "".join(cell if cell in ("|", SHARED) else " " for cell in draw_strip(there, width).plain)
    return Text(edges, "dim", no_wrap=True, overflow="crop")

"""Layouts drawn for a terminal: the 16-bit key space to scale, its segments, and their lineage.

Stage: drawing, under `anabranch.cli.commands.topics`. Pure. The lineage is drawn as one row of the key space for each
epoch that made segments: what lies above a segment is what it came from, so a split opens downwards and a merge closes.
"""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from anabranch.query.wording import instant
from decisions.topic.layout import HASH_SPACE, SegmentLayout
from decisions.topic.lineage import made_by
from decisions.topic.segment import Segment
from schemas.printable import printable

NARROWEST = 17
"""The key space has at least this many columns, even on a narrower terminal."""
COMFORTABLE = 72
"""Columns from which all that is known of a segment fits beside it."""
SHADES = ("cyan", "green")
FRESH = "bold yellow"
SHARED = "#"


def draw_layout(topic: str, layout: SegmentLayout, width: int, limit: int) -> RenderableType:
    """All of a layout in `width` columns; at most `limit` segments and `limit` newest epochs are listed."""
    parts: list[RenderableType] = [Text(_heading(topic, layout), "bold"), *_notes(layout), Text()]
    row = draw_strip(layout.active, bar_width(width))
    parts += [draw_scale(bar_width(width)), row]
    if SHARED in row.plain:
        parts.append(Text(f"{SHARED}: several segments in one column", "dim"))
    parts += [Text(), _segments(layout.active, width, limit), Text()]
    parts += [_lineage(layout, width, limit)]
    return Group(*parts)


def draw_change(topic: str, layout: SegmentLayout, width: int) -> RenderableType:
    """Draw the newest epoch's change to a topic in a line, and the key space below it."""
    newest = _epochs(layout)[-1]
    event = _event(layout, newest) if newest == layout.epoch else "nothing new; sealed segments may be pruned"
    return Group(
        Text(f"{_heading(topic, layout)}: {event}"),
        draw_strip(layout.active, bar_width(width), _made_in(layout, newest)),
    )


def draw_strip(segments: Iterable[Segment], width: int, fresh: Sequence[Segment] = ()) -> Text:
    """Draw segments in `width` columns, the last of them the edge, with ids and ranges if they fit."""
    cells = width - 1
    text = Text(no_wrap=True, overflow="crop")
    new = {segment.segment_id for segment in fresh}
    for number, segment in enumerate(sorted(segments, key=lambda item: (item.start, item.segment_id))):
        first, last = segment.start * cells // HASH_SPACE, (segment.end + 1) * cells // HASH_SPACE
        if len(text) < first:
            text.append(" " * (first - len(text)))
        if last <= first:
            # No column is free: this one is shared.
            if len(text) == first:
                text.append(SHARED)
            continue
        style = FRESH if segment.segment_id in new else SHADES[number % 2]
        size = last - len(text)
        if size > 0:
            text.append("|" + _label(segment, size - 1), style)
    text.append(" " * (cells - len(text)))
    text.append("|")
    return text


def _label(segment: Segment, size: int) -> str:
    hashes = f"{segment.start:04x}-{segment.end:04x}"
    for label in (f" {segment.segment_id}: {hashes} ", f" {segment.segment_id} ", str(segment.segment_id), ""):
        if len(label) <= size:
            return label.center(size, "-")
    return ""


def draw_scale(width: int) -> Text:
    """Hashes in hexadecimal above their columns, as many as fit."""
    marks = next((marks for marks in (8, 4, 2) if width >= marks * 8), 1)
    cells = [" "] * width
    for mark in range(marks):
        column = mark * (width - 1) // marks
        cells[column : column + 4] = f"{mark * HASH_SPACE // marks:04x}"
    cells[-4:] = "ffff"
    return Text("".join(cells[:width]), "dim", no_wrap=True, overflow="crop")


def bar_width(width: int) -> int:
    """Columns of the key space where so many are free."""
    return max(width, NARROWEST)


def _heading(topic: str, layout: SegmentLayout) -> str:
    active = len(layout.active)
    sealed = len(layout.segments) - active
    segments = f"{active} active segment{'s' * (active != 1)}"
    return f"{printable(topic)} at epoch {layout.epoch}, {segments}{f', {sealed} sealed' if sealed else ''}"


def _notes(layout: SegmentLayout) -> list[Text]:
    notes = [f"{key}={value}" for key, value in sorted(layout.properties.items())]
    lines = [f"properties: {', '.join(printable(note) for note in notes)}"] if notes else []
    if layout.auto_scale_policy is not None:
        lines.append(f"policy: {printable(layout.auto_scale_policy.to_json())}")
    return [Text(line) for line in lines]


def _segments(active: Sequence[Segment], width: int, limit: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    headings = ("segment", "hashes", "from", "share", "since epoch", "created")
    columns = len(headings) if width >= COMFORTABLE else 3
    for heading in headings[:columns]:
        right = heading in ("segment", "share", "since epoch")
        table.add_column(no_wrap=heading != "from", justify="right" if right else "left")
    table.add_row(*(Text(heading, "dim") for heading in headings[:columns]))
    for segment in active[:limit]:
        cells = (
            str(segment.segment_id),
            f"{segment.start:04x}-{segment.end:04x}",
            _ids(segment.parent_ids),
            f"{segment.width / HASH_SPACE:.2%}",
            str(segment.created_at_epoch),
            instant(segment.created_at_ms),
        )
        table.add_row(*map(Text, cells[:columns]))
    if len(active) <= limit:
        return table
    return Group(table, Text(f"and {len(active) - limit} more: --limit, or --output json", "dim"))


def _lineage(layout: SegmentLayout, width: int, limit: int) -> RenderableType:
    epochs = _epochs(layout)
    shown = epochs[-limit:]
    events = [_event(layout, epoch) for epoch in shown]
    number = len(str(shown[-1])) + 6
    aside = min(max(map(len, events)), max(width // 3, 12))
    bar = bar_width(width - number - aside - 2)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, width=number)
    table.add_column(no_wrap=True, width=bar)
    table.add_column(overflow="fold", width=aside)
    for epoch, event in zip(shown, events, strict=True):
        there = [
            segment
            for segment in layout.segments.values()
            if segment.created_at_epoch <= epoch and (segment.is_active or segment.sealed_at_epoch > epoch)
        ]
        table.add_row(
            Text(f"epoch {epoch}"), draw_strip(there, bar, _made_in(layout, epoch) if epoch else ()), Text(event, "dim")
        )
    hidden = len(epochs) - len(shown)
    title = f"lineage, oldest first{f' ({hidden} earlier changes: --limit)' if hidden else ''}"
    return Group(Text(title, "dim"), table)


def _epochs(layout: SegmentLayout) -> list[int]:
    """The epochs that made segments, oldest first; a layout always has one."""
    return sorted({segment.created_at_epoch for segment in layout.segments.values()})


def _made_in(layout: SegmentLayout, epoch: int) -> list[Segment]:
    return [segment for segment in layout.segments.values() if segment.created_at_epoch == epoch]


def _event(layout: SegmentLayout, epoch: int) -> str:
    """Return an epoch's change: `split 0 -> 1, 2`, `merge 1, 3 -> 5`; pruned parents are not known."""
    families: dict[tuple[int, ...], list[int]] = {}
    for segment in _made_in(layout, epoch):
        families.setdefault(segment.parent_ids, []).append(segment.segment_id)
    events = []
    for parents, children in sorted(families.items()):
        if parents:
            kind = made_by(layout.segments[children[0]], layout.segments)
            events.append(f"{kind} {_ids(parents)} -> {_ids(children)}")
        else:
            events.append(f"created {_ids(children)}" if epoch == 0 else f"made {_ids(children)}, parents pruned")
    return "; ".join(events)


def _ids(ids: Sequence[int]) -> str:
    if len(ids) > 8:
        return f"{ids[0]} to {ids[-1]}" if list(ids) == list(range(ids[0], ids[-1] + 1)) else f"{len(ids)} segments"
    return ", ".join(map(str, ids))

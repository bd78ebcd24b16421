"""One frame of the screen: parts, rates, key space and holds of each topic, newest decisions.

Stage: drawing. `frame` is a pure function of the lake's view and of the terminal's size; `anabranch.local.screen` shows
its result. Every line is built to fit: where room ends, detail is dropped in a fixed order, and nothing ever wraps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group
from rich.text import Text

from anabranch.history.picture import DecisionView, ExecutorView, LakeView, TopicView
from anabranch.history.words import age, amount, hold_reason, printable, short_names, span
from anabranch.local.processes import PartState
from anabranch.local.screen.keyspace import legend, ruler, strip
from anabranch.local.screen.loads import Loads, loads_text
from lake.brakes import ALL

DIM = "grey62"
FAINT = "grey50"
GOOD, BUSY, BAD = "#009e73", "#e69f00", "#d55e00"

_OUTCOMES = {
    "applied": ("✓", GOOD),
    "intent": ("…", BUSY),
    "observed": ("○", DIM),
    "superseded": ("~", DIM),
    "rejected": ("✗", BAD),
    "failed": ("✗", BAD),
}


_STATES = {"up": ("●", GOOD), "starting": ("◐", BUSY), "stopped": ("○", DIM), "restarting": ("✗", BAD)}
_ACTIONS = (
    ("split:consumer-count", "splits for consumers"),
    ("split:load", "splits for load"),
    ("merge", "merges of cold pairs"),
    ("rebucket", "rebuckets for consumers"),
)

NO_LOADS: Loads = {}


@dataclass(frozen=True)
class _Columns:
    """Widths of one topic's line; 0 = the column is left out."""

    name: int
    epoch: int
    strip: int
    consumers: int
    hold: int


def frame(
    view: LakeView, parts: Sequence[PartState], width: int, height: int, elapsed: float = 0.0, loads: Loads = NO_LOADS
) -> Group:
    """Draw the whole screen in at most `height` lines of at most `width` cells.

    `elapsed`: seconds since the start. `loads`: what the collector of Kafka has read of the segments.
    """
    top = [_parts_line(parts, width, elapsed), *_trouble_lines(parts, width, height)]
    top += [*_brake_lines(view, height), _rates_line(view, width)]
    if height >= 16:
        top.append(_actions_line(view))
    top += _page_lines(parts, height)
    room = height - len(top)
    per_topic = 3 if loads else 2
    spacious = room >= per_topic * len(view.topics) + 12
    two_lines = room >= per_topic * len(view.topics) + 6
    lines = [*top, Text("")] if spacious else top
    decisions_least = max(0, min(4, height // 6))
    topics_most = max(1, height - len(lines) - decisions_least - (1 if height >= 12 else 0))
    lines += _topic_lines(view, width, topics_most, two_lines, loads)
    if spacious:
        lines.append(Text(""))
    lines += _decision_lines(view, width, height - len(lines) - (1 if height >= 12 else 0))
    if height >= 12:
        lines += [Text("")] * (height - len(lines) - 1) if spacious else []
        lines.append(legend())
    return Group(*(_fitted(line, width) for line in lines[: max(1, height)]))


def _fitted(line: Text, width: int) -> Text:
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line


def _joined(items: Sequence[Text], gap: str, width: int) -> Text:
    """Join as many of `items` as fit, the first ones first."""
    line = Text()
    for item in items:
        if line.cell_len and line.cell_len + len(gap) + item.cell_len > width:
            continue
        if line.cell_len:
            line.append(gap)
        line.append_text(item)
    return line


def _parts_line(parts: Sequence[PartState], width: int, elapsed: float) -> Text:
    items = [Text.assemble(("anabranch", "bold"))]
    for part in parts:
        mark, style = _mark(part)
        item = Text.assemble((mark, style), " ", printable(part.name))
        if part.restarts:
            item.append(f" ↻{part.restarts}", BUSY)
        items.append(item)
    clock = Text(f"up {span(elapsed)}" if elapsed else "", DIM)
    line = _joined(items, "  ", width - (clock.cell_len + 2 if elapsed else 0))
    if elapsed and line.cell_len + clock.cell_len + 2 <= width:
        line.append(" " * (width - line.cell_len - clock.cell_len))
        line.append_text(clock)
    return line


def _page_lines(parts: Sequence[PartState], height: int) -> list[Text]:
    """Return the lines with the addresses of the pages in a browser."""
    if height < 16:
        return []
    return [Text.assemble("in a browser: ", (part.address, "bold")) for part in parts if part.address]


def _mark(part: PartState) -> tuple[str, str]:
    return _STATES.get(part.state, ("✗", BAD))


def _trouble_lines(parts: Sequence[PartState], width: int, height: int) -> list[Text]:
    troubled = [part for part in parts if _mark(part)[0] == "✗"]
    return [
        Text(printable(f"{part.name} {part.state}: {part.detail}" if part.detail else f"{part.name} {part.state}"), BAD)
        for part in troubled[: max(1, height // 10)]
    ]


def _brake_lines(view: LakeView, height: int) -> list[Text]:
    """Return the lines about what keeps the executor from acting.

    These are a stop, pauses, and the number of decisions that wait, by reason; with several executors or shards also
    which executor has which shards.
    """
    brakes, lines = view.brakes, []
    if brakes.stop is not None:
        lines.append(Text(printable(f"■ the executor has stopped: {brakes.stop.reason}"), BAD))
    for act in brakes.pauses:
        name = "everything" if act.subject == ALL else act.subject
        left = f", {span((act.until - view.now).total_seconds())} left" if act.until else ""
        lines.append(Text(printable(f"‖ {name} is paused by {act.actor}{left}: {act.reason}"), BUSY))
    if len(brakes.executors) > 1 or any(executor.of > 1 or executor.is_silent for executor in brakes.executors):
        executors = "; ".join(_executor(executor) for executor in brakes.executors)
        lines.append(
            Text(
                printable(f"executors: {executors}"),
                BUSY if any(executor.is_silent for executor in brakes.executors) else "",
            )
        )
    if brakes.waiting:
        held = ", ".join(f"{number} for {brake}" for brake, number in brakes.waiting.items())
        lines.append(Text(printable(f"‖ decisions wait: {held} (anabranch decisions waiting)"), BUSY))
    return lines[: max(1, height // 10)]


def _executor(executor: ExecutorView) -> str:
    """`host:123-ab12 has 0, 2 of 4`."""
    has = f"has {', '.join(map(str, executor.shards))} of {executor.of}" if executor.shards else "stands by"
    return f"{executor.name} {has}{' (silent)' if executor.is_silent else ''}"


def _rates_line(view: LakeView, width: int) -> Text:
    rates = view.rates
    items = [_figure(amount(rates.samples), "samples/s")]
    if rates.accepted_share is not None:
        items.append(_figure(f"{rates.accepted_share * 100:.0f} %", "significant"))
    items.append(_figure(f"{rates.events:.1f}", "events/s"))
    if rates.batch_ms is not None:
        items.append(_figure(f"{rates.batch_ms:.0f} ms", "a batch"))
    letters = sum(view.dead_letters.values())
    items.append(_figure(amount(letters), "dead letters", BAD if letters else ""))
    items += [Text(f"{printable(reason)} {amount(count)}", FAINT) for reason, count in view.dead_letters.items()]
    return _joined(items, "  ", width)


def _actions_line(view: LakeView) -> Text:
    line = Text("applied", DIM)
    for kind, words in _ACTIONS:
        count = view.actions.get(kind, 0)
        line.append("  ")
        line.append_text(_figure(str(count), words, GOOD if count else ""))
    return line


def _figure(number: str, words: str, style: str = "") -> Text:
    return Text.assemble((number, f"bold {style}"), (f" {words}", DIM))


def _topic_lines(view: LakeView, width: int, most: int, two_lines: bool, loads: Loads) -> list[Text]:
    if not view.topics:
        return [Text("no topics yet: the first layouts are on their way through the stream", DIM)][:most]
    names = short_names(topic.name for topic in view.topics)
    columns = _columns(width, max(map(_cells, names.values())), two_lines, _widest_consumers(view))
    heading = Text(" " * (columns.name + columns.epoch))
    heading.append_text(ruler(columns.strip))
    if columns.consumers:
        heading.append("  consumers", FAINT)
    per_topic = (3 if loads else 2) if two_lines else 1
    fits = max(1, (most - 1) // per_topic)
    shown = view.topics
    if len(shown) > fits:
        shown = _most_interesting(view.topics, max(1, fits - 1))
    lines = [heading]
    for topic in shown:
        lines.append(_topic_line(topic, names[topic.name], columns, view.now))
        if two_lines:
            lines.append(_second_line(topic, columns, view.now, width))
        if two_lines and topic.name in loads:
            indent = Text(" " * (columns.name + columns.epoch))
            lines.append(indent.append_text(loads_text(loads[topic.name], width - indent.cell_len)))
    if len(shown) < len(view.topics):
        lines.append(Text(f"… and {len(view.topics) - len(shown)} more topics that are calmer", FAINT))
    return lines[:most]


def _most_interesting(topics: Sequence[TopicView], number: int) -> tuple[TopicView, ...]:
    """Topics with an open decision first, then the most overloaded; in the order of their names."""

    def interest(topic: TopicView) -> tuple[bool, float]:
        return topic.open_decision is not None, max(
            (segment.overload or 0.0 for segment in topic.segments), default=0.0
        )

    chosen = {topic.name for topic in sorted(topics, key=interest, reverse=True)[:number]}
    return tuple(topic for topic in topics if topic.name in chosen)


def _columns(width: int, longest_name: int, two_lines: bool, widest_consumers: int) -> _Columns:
    name = min(longest_name, max(6, width // 6)) + 1
    epoch = 5 if width >= 70 else 0
    hold = 0 if two_lines or width < 60 else min(44, width * 3 // 10)
    consumers = min(widest_consumers, 34) if width >= 110 and not (hold and width < 140) else 0
    remaining = width - name - epoch - (consumers + 2 if consumers else 0) - (hold + 2 if hold else 0)
    return _Columns(name, epoch, max(1, remaining), consumers, hold)


def _topic_line(topic: TopicView, name: str, columns: _Columns, now: datetime) -> Text:
    line = _cell(Text.assemble((name, "bold")), columns.name - 1)
    line.append(" ")
    if columns.epoch:
        line.append(f"{f'e{topic.epoch}':<{columns.epoch - 1}.{columns.epoch - 1}} ", FAINT)
    line.append_text(strip(topic.segments, columns.strip))
    if columns.consumers:
        line.append("  ")
        line.append_text(_cell(_consumers(topic), columns.consumers))
    if columns.hold:
        line.append("  ")
        line.append_text(_cell(_standing(topic, now, columns.hold), columns.hold))
    return line


def _second_line(topic: TopicView, columns: _Columns, now: datetime, width: int) -> Text:
    line = Text(" " * (columns.name + columns.epoch))
    line.append(f"{len(topic.segments)} seg  ", FAINT)
    consumers = Text() if columns.consumers else _consumers(topic)
    room = width - line.cell_len - (consumers.cell_len + 2 if consumers.cell_len else 0)
    # The reason comes first: consumers are left out before it is cut to its bare code.
    if room < 24:
        consumers, room = Text(), width - line.cell_len
    line.append_text(_standing(topic, now, room))
    if consumers.cell_len:
        line.append(" " * (width - line.cell_len - consumers.cell_len))
        line.append_text(consumers)
    return line


def _standing(topic: TopicView, now: datetime, room: int) -> Text:
    if topic.open_decision is not None:
        doing = f" waits: {printable(topic.brake)}" if topic.brake else " under way"
        return Text.assemble(("▸ ", BUSY), (printable(topic.open_decision), f"bold {BUSY}"), (doing, BUSY))
    if topic.hold is None:
        return Text("evaluated at the next tick", FAINT)
    return Text(hold_reason(topic.hold, now, room), DIM)


def _consumers(topic: TopicView) -> Text:
    text = Text()
    for subscription, kind, count in topic.consumers:
        if text.cell_len:
            text.append("  ")
        managed = kind != "QUEUE"
        text.append(printable(subscription) + " ", FAINT)
        text.append(str(count) if managed else f"({count})", "bold" if managed and count else DIM)
    return text


def _widest_consumers(view: LakeView) -> int:
    return max((_consumers(topic).cell_len for topic in view.topics), default=0)


def _decision_lines(view: LakeView, width: int, most: int) -> list[Text]:
    if most < 2:
        return []
    heading = Text("newest decisions", f"bold {DIM}")
    if not view.decisions:
        return [heading, Text("none yet", FAINT)]
    shown = view.decisions[: most - 1]
    names = short_names({decision.topic for decision in view.decisions})
    name_width = min(max(_cells(names[decision.topic]) for decision in shown), max(8, width // 5))
    action_width = max(_cells(_action(decision)) for decision in shown)
    return [heading, *(_decision_line(row, names[row.topic], name_width, action_width, view.now) for row in shown)]


def _decision_line(decision: DecisionView, name: str, name_width: int, action_width: int, now: datetime) -> Text:
    mark, style = _OUTCOMES.get(decision.status or "", ("·", FAINT))
    line = Text.assemble((f"{age(decision.decided_at, now):>6}  ", FAINT), (mark, style), " ")
    line.append_text(_cell(Text.assemble((name, "bold")), name_width))
    line.append(" ")
    line.append_text(_cell(Text(_action(decision)), action_width))
    line.append(f"  {printable(decision.reason):<14}", "#56b4e9")
    line.append(f"  {printable(decision.trigger):<8}", FAINT)
    status = f"waits: {decision.brake}" if decision.brake else decision.status or "not begun"
    line.append(f"  {printable(status)}", BUSY if decision.brake else style)
    if decision.status_at is not None and decision.status != "intent":
        line.append(f" after {span((decision.status_at - decision.decided_at).total_seconds())}", FAINT)
    if decision.error:
        line.append(f": {printable(decision.error)}", BAD)
    return line


def _action(decision: DecisionView) -> str:
    return f"{printable(decision.action)} {'+'.join(map(str, decision.segments))}"


def _cell(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis", pad=True)
    return text


def _cells(text: str) -> int:
    return Text(text).cell_len

"""Key space of a topic over time: hashes from top to bottom, time left to right, coloured by load.

Stage: above the geometry of `anabranch.history.lineage.svg`. Every place is a link to why the topic acted or held then;
below the water stands which gate held it, above it what was decided.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence

from markupsafe import Markup

from anabranch.history.lineage.record import Reach, River
from anabranch.history.lineage.svg import BOTTOM, HEIGHT, LEFT, RIGHT, STEPS, TOP, WIDTH, Places, outline
from anabranch.query.wording import reading_words
from anabranch.web.drawing.strip import LEVELS, level
from anabranch.web.past import DecisionMark, HoldSpan, Rates, Sample
from anabranch.web.words import shown, utc
from decisions.autoscale.policy import Policy
from decisions.autoscale.rates import is_cold, segment_overload
from decisions.topic.layout import HASH_SPACE
from schemas.metadata import RATES

CELLS = 120
"""Steps of time in which load is coloured."""
MAX_CELLS = 12_000
"""Of all segments together; of many segments each has fewer."""
MAX_ENDED = 500
"""Most ended segments in a picture: with thousands, each a pixel wide, a browser is busy for seconds."""
_BAR = 16
_NARROWEST = 12.0

Link = Callable[[int, int | None], str]
"""The address of why, at an instant (milliseconds), of a segment or of the topic."""


def river_picture(
    river: River,
    loads: Mapping[int, Sequence[Sample]],
    policy: Policy | None,
    decided: Sequence[DecisionMark],
    held: Sequence[HoldSpan],
    why: Link,
    about: Callable[[str], str],
) -> Markup:
    """An `svg` element. `about`: the address of a decision by its id."""
    axes = Places(river)
    reaches = [begun for begun in river.reaches if begun.begins <= river.until]
    cells = max(8, min(CELLS, MAX_CELLS // max(1, len(reaches))))
    parts = [
        Markup('<svg class="river" viewBox="0 0 {} {}" role="group" aria-label="{}">').format(
            WIDTH, HEIGHT, told(river)
        ),
        *_scales(river, axes),
    ]
    for number, reach in enumerate(reaches):
        water, banks = outline(reach, river.until, axes)
        parts.append(
            Markup(
                '<clipPath id="w{}"><path d="{}"/></clipPath><path class="bed" d="{}"/><g clip-path="url(#w{})">'
            ).format(number, water, water, number)
        )
        parts += _water(reach, river, loads.get(reach.segment_id, ()), policy, axes, cells, why)
        parts.append(Markup('</g><path class="bank" d="{}"/>').format(banks))
    parts += _numbers(reaches, axes)
    parts += _decisions(decided, river, axes, about)
    parts += _holds(held, river, axes, why)
    parts.append(Markup("</svg>"))
    return Markup("\n").join(parts)


def told(river: River) -> str:
    """The picture in words."""
    splits, merges = (sum(turn.kind == kind for turn in river.turns) for kind in ("split", "merge"))
    active = sum(reach.ends is None for reach in river.reaches)
    return (
        f"Key space of {shown(river.topic)} from {utc(river.since)} to {utc(river.until)} UTC: {splits} splits, "
        f"{merges} merges, {active} segments at its end. The same as a table stands below"
    )


def rates_words(rates: Rates, policy: Policy | None) -> str:
    """The four rates, each against its split threshold."""
    if policy is None:
        return ", ".join(f"{name} {rate:,.0f}" for name, rate in zip(RATES, rates, strict=True))
    return ", ".join(
        f"{name} {rate:,.0f} of {limit:,.0f}"
        for name, rate, limit in zip(RATES, rates, policy.split_thresholds, strict=True)
    )


def _water(
    reach: Reach, river: River, samples: Sequence[Sample], policy: Policy | None, axes: Places, cells: int, why: Link
) -> Iterator[Markup]:
    """Load as colour, in runs of the same level."""
    top, high = axes.y(reach.start), axes.y(reach.end + 1) - axes.y(reach.start)
    step = max((river.until - river.since) / cells, 1.0)
    begins, ends = max(reach.begins, river.since), river.until if reach.ends is None else reach.ends
    runs: list[tuple[int, int, str, Sample | None]] = []
    begin_of_run = begins
    while begin_of_run < ends or not runs:
        following = min(ends, int(river.since + ((begin_of_run - river.since) // step + 1) * step) + 1)
        heaviest = _heaviest(samples, begin_of_run, following, policy)
        # A record of an earlier life of the name, or of before it was made, is not of this segment.
        heaviest = None if heaviest is not None and heaviest.at < reach.begins else heaviest
        load = None if heaviest is None or policy is None else segment_overload(heaviest.rates, policy)[0]
        kind = level(load, heaviest is not None and policy is not None and is_cold(heaviest.rates, policy))
        if runs and runs[-1][2] == kind:
            runs[-1] = runs[-1][0], following, kind, heaviest
        else:
            runs.append((begin_of_run, following, kind, heaviest))
        if following <= begin_of_run:
            break
        begin_of_run = following
    for begin, end, kind, heaviest in runs:
        words = LEVELS[kind] if heaviest is None else f"{LEVELS[kind]}: {rates_words(heaviest.rates, policy)}"
        left, right = axes.x(begin), axes.x(end)
        yield Markup(
            '<a href="{}" tabindex="-1"><title>segment {}, {} to {}: {}. Why then?</title>'
            '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/></a>'
        ).format(
            why((begin + end) // 2, reach.segment_id),
            reach.segment_id,
            utc(begin),
            utc(end, "%H:%M:%S"),
            words,
            kind,
            left,
            top,
            max(right - left, 0.5) + 0.3,
            high,
        )


def _heaviest(samples: Sequence[Sample], since: int, until: int, policy: Policy | None) -> Sample | None:
    """The heaviest load that stood at some time from an instant to another one."""
    first = bisect_right(samples, since, key=lambda sample: sample.at)
    last = bisect_right(samples, until, key=lambda sample: sample.at)
    within = [*samples[max(first - 1, 0) : first], *samples[first:last]]
    if not within or policy is None:
        return within[-1] if within else None
    return max(within, key=lambda sample: segment_overload(sample.rates, policy)[0])


def _numbers(reaches: Sequence[Reach], axes: Places) -> Iterator[Markup]:
    for reach in reaches:
        left, right = axes.x(reach.begins), axes.x(axes.until if reach.ends is None else reach.ends)
        top, bottom = axes.y(reach.start), axes.y(reach.end + 1)
        if bottom - top >= _NARROWEST and right - left >= 10 + 8 * len(str(reach.segment_id)):
            x, y = (left + right) / 2, (top + bottom) / 2
            yield Markup('<text class="number" x="{:.1f}" y="{:.1f}">{}</text>').format(x, y, reach.segment_id)


def _mark(action: str, x: float, y: int) -> tuple[float, ...]:
    """The corners of a decision's mark, each as x and y."""
    if action == "rebucket":
        return x - 6, y, x, y - 7, x + 6, y, x, y + 7
    wide = 6 if action == "split" else -6
    return x - wide, y - 7, x - wide, y + 7, x + wide, y, x - wide, y - 7


def _decisions(
    decided: Sequence[DecisionMark], river: River, axes: Places, about: Callable[[str], str]
) -> Iterator[Markup]:
    """Yield a mark for each decision, hollow if not applied: an opening or closing triangle, or a diamond."""
    y = TOP - 16
    for decision in decided:
        if not river.since <= decision.at <= river.until:
            continue
        x = axes.x(decision.at)
        segments = "+".join(map(str, decision.segments))
        words = (
            f"{decision.action} {segments} at {utc(decision.at)}, {decision.reason}: {decision.status or 'not begun'}"
        )
        yield Markup(
            '<a href="{}"><title>{}</title><polygon class="mark{}" '
            'points="{:.1f},{} {:.1f},{} {:.1f},{} {:.1f},{}"/></a>'
        ).format(
            about(decision.decision_id),
            shown(words),
            "" if decision.status == "applied" else " hollow",
            *_mark(decision.action, x, y),
        )


def _holds(held: Sequence[HoldSpan], river: River, axes: Places, why: Link) -> Iterator[Markup]:
    """Which gate held the topic, as a bar under the water."""
    top, drawn = HEIGHT - BOTTOM + 26, -1.0
    for number, hold in enumerate(held):
        begin, end = max(hold.since, river.since), min(hold.until, river.until)
        left, right = axes.x(begin), axes.x(end)
        # A bar within the pixel of the previous one is invisible.
        if end <= begin or right < drawn + 1:
            continue
        drawn = right
        figures = " against ".join(filter(None, reading_words(hold.gate, hold.measured, hold.limit)))
        numbers = f", {figures}" if figures else ""
        yield Markup(
            '<a href="{}" tabindex="-1"><title>held by {} from {} to {}{}. Why?</title>'
            '<rect class="held held{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>'
        ).format(
            why((begin + end) // 2, None),
            hold.gate,
            utc(begin),
            utc(end, "%H:%M:%S"),
            numbers,
            number % 2,
            left,
            top,
            max(right - left - 0.5, 0.5),
            _BAR,
        )
        if right - left > 7 * len(hold.gate) + 6:
            yield Markup('<text x="{:.1f}" y="{}">{}</text>').format(left + 4, top + 12, shown(hold.gate))
        yield Markup("</a>")


def _scales(river: River, axes: Places) -> Iterator[Markup]:
    bottom = HEIGHT - BOTTOM
    for hash_value in range(0, HASH_SPACE + 1, HASH_SPACE // 8):
        y = axes.y(hash_value)
        yield Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
            '<text class="end" x="{}" y="{:.1f}">{:04x}</text>'
        ).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 8, y + 4, min(hash_value, HASH_SPACE - 1))
    yield Markup('<text class="end" x="{}" y="{}">decided</text><text class="end" x="{}" y="{}">held by</text>').format(
        LEFT - 8, TOP - 12, LEFT - 8, bottom + 38
    )
    span = max((river.until - river.since) / 1000, 1)
    step = next((seconds for seconds in STEPS if span / seconds <= 10), STEPS[-1]) * 1000
    form = "%m-%d %H:%M" if span > 86_400 else "%H:%M" if step >= 60_000 else "%H:%M:%S"
    instant = -(-river.since // step) * step
    while instant <= river.until:
        x = axes.x(instant)
        yield Markup(
            '<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>'
            '<text class="middle" x="{:.1f}" y="{}">{}</text>'
        ).format(x, x, TOP, bottom, x, bottom + 17, utc(int(instant), form))
        instant += step

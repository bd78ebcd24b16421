"""Check that each layout that a hold names by digest was announced in `events`."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pydantic import ValidationError

from decisions.topic.layout import LayoutError
from engine.autoscale.layouts import layout_of_model
from schemas.codecs.plain_events import digest_of, layout_in
from schemas.kafka.messages import LayoutEvent


def unknown_layouts(
    holds: Iterable[tuple[str, str, int]], events: Iterable[pa.RecordBatch]
) -> Iterator[tuple[str, int]]:
    """Yield a message and the number of holds for each digest that no event announces.

    `holds`: `(subject, digest, holds)`; `events`: `subject` and `body` of the announcements of layouts, in any order.
    """
    wanted: dict[str, dict[str, int]] = {}
    for subject, digest, number in holds:
        wanted.setdefault(subject, {})[digest] = number
    for batch in events:
        if not wanted:
            return
        for subject, body in zip(batch["subject"].to_pylist(), batch["body"].to_pylist(), strict=True):
            if (of_subject := wanted.get(subject)) is None:
                continue
            for digest in _digests(body):
                if of_subject.pop(digest, None) is not None:
                    break
            if not of_subject:
                del wanted[subject]
    for subject, digests in sorted(wanted.items()):
        for digest, number in sorted(digests.items()):
            yield f"{number} holds of {subject} are of the layout {digest}, which nobody announced", number


def _digests(body: str) -> Iterator[str]:
    """Yield the digests that the job may have used for a layout event.

    They are that of the text as it came and, if it is not in our own form, that of the layout as we write it.
    """
    if ',"layout":{' in body and '},"at":' in body:
        yield digest_of(layout_in(body.encode()))
    try:
        if (layout := LayoutEvent.model_validate_json(body).layout) is not None:
            yield layout_of_model(layout).digest
    except (ValidationError, LayoutError):
        return

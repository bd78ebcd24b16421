"""Frames of the live screen as text or as a picture."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Literal

from rich.console import Console

from anabranch.history.picture import LakeView
from anabranch.local.processes import PartState
from anabranch.local.screen import frame


def export_frame(
    view: LakeView,
    parts: Sequence[PartState],
    width: int = 100,
    height: int = 30,
    form: Literal["svg", "text"] = "svg",
    elapsed: float = 0.0,
) -> str:
    """One frame as an SVG picture of a terminal, or as plain text."""
    console = Console(
        record=True, file=io.StringIO(), width=width, height=height, force_terminal=True, color_system="truecolor"
    )
    console.print(frame(view, parts, width, height, elapsed))
    if form == "text":
        return console.export_text()
    # Without the web fonts that the picture would otherwise load; any monospace font will do.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="anabranch run --local"), flags=re.DOTALL)

"""The number of random examples of a property test: few in `make test`, five times as many in `make soak`.

Examples are drawn anew in each run, so that many short runs see as much as a long one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

FEW = 25
"""Examples of a test that asks for no number, in `make test`."""


def examples(few: int, **more: Any) -> settings:
    """Settings for `few` examples in `make test`, and `more` for hypothesis."""
    return settings(max_examples=few * settings().max_examples // FEW, **more)

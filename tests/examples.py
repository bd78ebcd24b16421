"""The number of random examples of a property test: few in `make test`, five times as many in `make soak`.

Examples are drawn anew in each run, so that many short runs see as much as a long one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

FEW = 25
"""Examples of a test that asks for no number, in `make test`."""


def examples(few: int, **more: Any) -> settings:
    """Settings for `few` examples in `make test`, and `more` for hypothesis."""
    return settings(max_examples=few * settings().max_examples // FEW, **more)


def only_first(few: int, parameters: Iterable[Any]) -> list[Any]:
    """Parameters of a test of which `make test` takes the first few, and `make soak` the others."""
    values = (one if isinstance(one, tuple) else (one,) for one in parameters)
    return [pytest.param(*one, marks=[pytest.mark.soak] * (number >= few)) for number, one in enumerate(values)]

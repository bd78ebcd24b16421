"""Durations as options of the command line: `90`, `90s`, `2m`, `1h`."""

from __future__ import annotations

import re

import click

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """A positive number of seconds, given with or without a unit."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd]?)", str(value).strip())
        if match is None or float(match[1]) <= 0:
            self.fail(f"{value!r} is no duration; write 90, 90s, 2m or 1h", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


DURATION = Duration()

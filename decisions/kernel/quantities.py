"""Quantities as people write them, read without rounding: `60s`, `5m`, `50MB`, `10k`, plain numbers.

Stage: under every reader of policy files. Units: durations in seconds, sizes in bytes (decimal: 1 MB = 1,000,000, as in
Pulsar), rates in messages per second.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

DURATIONS: Mapping[str, Fraction] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
}
SIZES: Mapping[str, Fraction] = {
    "B": Fraction(1),
    "kB": Fraction(10**3),
    "KB": Fraction(10**3),
    "MB": Fraction(10**6),
    "GB": Fraction(10**9),
    "TB": Fraction(10**12),
}
RATES: Mapping[str, Fraction] = {"k": Fraction(10**3), "M": Fraction(10**6)}

_QUANTITY = re.compile(r"\s*(-?[0-9]{1,30}(?:_[0-9]{1,3}){0,9}(?:\.[0-9]{1,30})?)\s*([A-Za-z]{0,9})(?:/s)?\s*")


class QuantityError(ValueError):
    """A text is no quantity of the kind that was asked for; the message says what it may be."""


def parse_duration(value: str | int | float) -> Fraction:
    """Seconds: `60`, `60s`, `1m`, `1.5h`, `250ms`."""
    return _parse_quantity(value, DURATIONS, 'a duration like 60, "60s", "1m" or "5m"')


def parse_size(value: str | int | float) -> Fraction:
    """Bytes (or bytes per second): `50000000`, `50MB`, `1.5GB`; decimal units only."""
    return _parse_quantity(value, SIZES, 'a size like 50000000 or "50MB" (decimal units: kB, MB, GB, TB)')


def parse_rate(value: str | int | float) -> Fraction:
    """Messages per second: `10000`, `10k`."""
    return _parse_quantity(value, RATES, 'a rate like 10000 or "10k"')


def _parse_quantity(value: str | int | float, units: Mapping[str, Fraction], expected: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise QuantityError(f"{value!r} is not {expected}")
    if not isinstance(value, str):
        try:
            return Fraction(value)
        except (ValueError, OverflowError):
            raise QuantityError(f"{value!r} is not {expected}") from None
    match = _QUANTITY.fullmatch(value)
    if match is None or (match.group(2) and match.group(2) not in units):
        raise QuantityError(f"{value[:80]!r} is not {expected}")
    return Fraction(match.group(1).replace("_", "")) * (units[match.group(2)] if match.group(2) else 1)

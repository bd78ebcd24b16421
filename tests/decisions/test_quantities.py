"""Quantities as people write them, read exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest

from decisions.kernel.quantities import QuantityError, parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (parse_duration, "60s", 60),
        (parse_duration, "5m", 300),
        (parse_duration, "2h", 7200),
        (parse_duration, "250ms", Fraction(1, 4)),
        (parse_duration, 60, 60),
        (parse_duration, "60", 60),
        (parse_size, "50MB", 50_000_000),
        (parse_size, "1.1MB", 1_100_000),
        (parse_size, 5, 5),
        (parse_rate, "10k", 10_000),
        (parse_rate, 0.5, Fraction(1, 2)),
        (parse_rate, "0.25", Fraction(1, 4)),
    ],
)
def test_a_quantity_is_read_exactly(parse, text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    "value", ["", "x", "1 2", "1e3", "--1", "5 parsecs", "25%", True, None, float("inf"), float("nan"), []]
)
def test_what_is_no_quantity_is_refused(value):
    with pytest.raises(QuantityError, match="is not a duration"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("parse", "value", "kind"),
    [(parse_duration, "5MB", "duration"), (parse_size, "5s", "size"), (parse_rate, "5m", "rate")],
)
def test_unit_of_another_kind_is_refused(parse, value, kind):
    with pytest.raises(QuantityError, match=f"is not a {kind}"):
        parse(value)

"""`anabranch whatif simulate --family bundles`: bundle balancers compared, as text, JSON or a page."""

import json
import time
from collections.abc import Sequence

import click

from anabranch.cli.reports import counting
from anabranch.simulation.bundles.compare import COLUMNS, Compared, compare, rows_of
from anabranch.simulation.bundles.shapes import SHAPES
from decisions.bundles.configuration import ConfigurationError
from schemas.printable import printable


def simulation_report(
    shapes: Sequence[str], policies: Sequence[str], settings: Sequence[str], seeds: range, output: str
) -> tuple[str, str]:
    """The report and a line about it. Raises click's errors for what cannot be read."""
    for shape in shapes:
        if shape not in SHAPES:
            raise click.BadParameter(f"{printable(shape)} is none of {', '.join(SHAPES)}", param_hint="--shape")
    began = time.monotonic()
    wanted = list(dict.fromkeys(shapes)) or list(SHAPES)
    try:
        compared = compare(wanted, list(dict.fromkeys(policies)), settings_of(settings), seeds, counting("simulations"))
    except ConfigurationError as error:
        raise click.BadParameter(printable(str(error)), param_hint="--policy or --set") from None
    about = (
        f"{', '.join(wanted)}: {len(policies)} balancers, {len(seeds)} seeds from {seeds.start} on, "
        f"in {time.monotonic() - began:.1f} s"
    )
    if output == "html":
        from anabranch.simulation.bundles.page import page

        return page(compared, about), about
    if output == "json":
        simulated = {"family": "bundles", "seeds": list(seeds), "results": [result.to_json() for result in compared]}
        return json.dumps(simulated) + "\n", about
    return "\n".join([printable(about), *table_text(compared)]) + "\n", about


def table_text(compared: Sequence[Compared]) -> list[str]:
    """The table's lines."""
    table = [["shape", "balancer", *(words for _, words in COLUMNS)], *rows_of(compared)]
    widths = [max(len(printable(row[column])) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            [
                *(printable(cell).ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)),
                *map(str.rjust, row[2:], widths[2:]),
            ]
        ).rstrip()
        for row in table
    ]


def settings_of(texts: Sequence[str]) -> dict[str, str]:
    """Of `NAME=VALUE`, each. Raises click's error."""
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{printable(text)}: NAME=VALUE is wanted", param_hint="--set")
        settings[name] = value
    return settings

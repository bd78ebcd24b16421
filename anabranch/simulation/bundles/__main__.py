"""Command line for balancers on the same fleet: `python -m anabranch.simulation.bundles SHAPE BALANCER… [--json]`."""

from __future__ import annotations

import json
import sys

from anabranch.simulation.bundles.run import balancer, simulate
from anabranch.simulation.bundles.shapes import SHAPES

SEED = 1


def main(arguments: list[str]) -> int:
    """Print the table; return 2 when the arguments cannot be read."""
    as_json = "--json" in arguments
    shape, *balancers = [argument for argument in arguments if argument != "--json"] or [""]
    if shape not in SHAPES or not balancers:
        print(f"wanted: one of {', '.join(SHAPES)}, then Shedder+Placement[,setting=value…] …", file=sys.stderr)
        return 2
    summaries = {}
    for text in balancers:
        try:
            profile, configuration = balancer(text)
            summaries[text] = simulate(SHAPES[shape](SEED), configuration, profile).summary()
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
    if as_json:
        print(json.dumps({"shape": shape, "seed": SEED, "balancers": summaries}))
        return 0
    for text, columns in summaries.items():
        shown = [
            f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}" for name, value in columns.items()
        ]
        print(f"{text}: {'; '.join(shown)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

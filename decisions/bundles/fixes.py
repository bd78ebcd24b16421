"""Fixes of Pulsar's balancer in later releases, each as a switch of its own.

Stage: under `configuration`, which lays a profile's switches under what is given. A switch that is on decides as the
fixed release does, one that is off as the release before it. Run as `python -m decisions.bundles.fixes`: the table of
docs/bundles.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Fix:
    """One change, by the number of its pull request at apache/pulsar."""

    on: str
    off: str
    without: frozenset[str] = frozenset()
    """Profiles that stand for releases without it."""


_UNTIL_3_0 = frozenset({"2.10", "3.0"})
FIXES: Mapping[str, Fix] = MappingProxyType(
    {
        "fix12527": Fix("A bundle with fewer than two topics is not split.", "It is, over and over."),
        "fix13136": Fix(
            "ThresholdShedder's average of a broker starts with its first reading.",
            "It starts with 0 and takes dozens of cycles to come up.",
        ),
        "fix16552": Fix(
            "Splits accepted in a cycle count towards the namespace's maximum of bundles.",
            "Only bundles that are there count: one cycle can pass the maximum.",
        ),
        "fix19559": Fix(
            "Heap memory is part of no usage.", "It is, with `loadBalancerMemoryResourceWeight`.", frozenset({"2.10"})
        ),
        "fix20822": Fix(
            "A picked bundle for which placement chooses its owner stays.",
            "It is unloaded, and comes back to its owner.",
            _UNTIL_3_0,
        ),
        "fix21025": Fix(
            "UniformLoadShedder finds the extremes of rate and of throughput apart.",
            "As `UniformLoadShedder-21016`: either signal takes over one slot for both.",
            _UNTIL_3_0,
        ),
        "fix21214": Fix(
            "UniformLoadShedder leaves bundles without traffic alone.", "It picks them as well.", _UNTIL_3_0
        ),
        "fix22888": Fix(
            "Weights hold where placement asks whether a broker is overloaded.",
            "That question knows no weights.",
            _UNTIL_3_0,
        ),
        "fix24954": Fix(
            "AvgShedder orders brokers by their exact scores.",
            "Scores less than one point apart are equal.",
            _UNTIL_3_0,
        ),
        "fix26246": Fix(
            "AvgShedder's plan is by bundle, ends with the cycle, and avoids an overloaded destination.",
            "It is by a bundle's numbers: bundles with equal ones share a destination. It lasts until they change.",
            _UNTIL_3_0 | {"4.x"},
        ),
    }
)
"""Switches by name, in the order of their numbers."""


def profile_switches(profile: str) -> dict[str, bool]:
    """Every switch as the profile has it."""
    return {name: profile not in fix.without for name, fix in FIXES.items()}


def switches_table(profiles: tuple[str, ...]) -> str:
    """The switches as a table in Markdown."""
    rows = [
        f"| `{name}` | {fix.on} | {fix.off} | "
        f"{', '.join(profile for profile in profiles if profile in fix.without) or 'none'} |"
        for name, fix in FIXES.items()
    ]
    return "\n".join(["| switch | on | off | off in |", "| --- | --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    print(switches_table(("2.10", "3.0", "4.x", "5.0")), end="")

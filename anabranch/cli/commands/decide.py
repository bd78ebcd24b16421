"""`anabranch decisions decide`: snapshots in, answers out, one JSON object a line. No Spark, no JVM.

The dry run of the whole system: any snapshot, recorded or written by hand, can be decided again here, under any
profile or policy. Answers keep the order of the lines, and are written as soon as the lines read so far are decided.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click
from pydantic import ValidationError
from pydantic_core import to_json

from anabranch.cli.bookies import decisions as bookie_decisions
from anabranch.cli.bundles import decisions as bundle_decisions
from decisions.autoscale.answers import answer_to_json
from decisions.autoscale.decide import decide
from decisions.autoscale.policy import PROFILES, PolicyError, read_policy
from decisions.autoscale.snapshot import snapshot_from_wire
from decisions.autoscale.split_pass import news_of_hot_keys
from decisions.bundles.configuration import ConfigurationError
from decisions.topic.layout import LayoutError
from schemas.metadata import AutoScalePolicyOverride
from schemas.printable import printable
from schemas.snapshot import Snapshot

CHUNK_BYTES = 1 << 18
MAX_SHOWN_ERRORS = 3


@click.command("decide")
@click.option("--profile", default="default", show_default=True, type=click.Choice(sorted(PROFILES)))
@click.option(
    "--policy",
    "policy_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML policy laid over each snapshot's own: what would this policy have decided?",
)
@click.option("--explain", is_flag=True, help="A table of gates for people instead of JSON.")
@click.option("--strict", is_flag=True, help="Refuse a snapshot of bundles or bookies with a key that is not known.")
@click.argument("file", type=click.File("rb"), default="-")
@click.pass_context
def decide_command(
    ctx: click.Context, profile: str, policy_file: Path | None, explain: bool, strict: bool, file: IO[bytes]
) -> None:
    """Decide snapshots from FILE or standard input, one JSON object a line; answers in the same order.

    \b
    A snapshot's policy is laid over the profile's defaults. A snapshot of a cluster's
    brokers and bundles (docs/bundles.md) names its profile itself. One of a switch
    between BookKeeper clusters (docs/bookies.md) says "family": "bookies". A line
    that is no valid snapshot answers {"error": "..."} in its place. Exit code 1
    when there was one.
    """
    over = _read_policy_file(policy_file)
    out, warned = sys.stdout.buffer, set[str]()
    failed, number = False, 0
    for lines in _chunks_of_lines(file):
        answers = []
        for line in lines:
            number += 1
            try:
                unknown = bundle_decisions.unknown_keys(line) | bookie_decisions.unknown_keys(line)
                if unknown and strict:
                    raise ConfigurationError(f"no snapshot of this family has {', '.join(map(repr, sorted(unknown)))}")
                for key in unknown - warned:
                    click.echo(f"line {number}: {printable(key)} is not known and ignored", err=True)
                warned |= unknown
                answers.append(_decide_line(line, profile, over, explain))
            except Exception as error:
                # Whatever one line leads to, the others are answered.
                failed, problem = True, _in_one_line(error)
                answers.append(
                    f"line {number}: {printable(problem)}\n".encode() if explain else to_json({"error": problem})
                )
        out.write(b"\n".join(answers) + b"\n")
        out.flush()
    ctx.exit(1 if failed else 0)


def _decide_line(line: bytes, profile: str, over: AutoScalePolicyOverride | None, explain: bool) -> bytes:
    """The answer to one line. Raises what a snapshot or its settings are refused with."""
    if bookie_decisions.is_bookie_snapshot(line):
        return bookie_decisions.decide_line(line, explain)
    if bundle_decisions.is_bundle_snapshot(line):
        return bundle_decisions.decide_line(line, explain)
    snapshot = snapshot_from_wire(Snapshot.model_validate_json(line), profile, over)
    answer = decide(snapshot)
    if explain:
        from anabranch.query.wording import explained

        return explained(snapshot, answer).encode()
    return answer_to_json(answer, news_of_hot_keys(snapshot))


def _read_policy_file(file: Path | None) -> AutoScalePolicyOverride | None:
    if file is None:
        return None
    try:
        return read_policy(file.read_text(encoding="utf-8"))
    except (PolicyError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {error}") from error


def _chunks_of_lines(file: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines of each available chunk of input, whole lines only.

    Never waits for a full block, so whoever reads the answers from a pipe gets them at once.
    """
    read = getattr(file, "read1", file.read)
    partial = [b""]
    while chunk := read(CHUNK_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield (b"".join(partial) + head).split(b"\n")
            partial = [tail]
        else:
            partial.append(chunk)
    if last := b"".join(partial):
        yield [last]


def _in_one_line(error: Exception) -> str:
    if isinstance(error, ConfigurationError):
        return str(error)
    if isinstance(error, LayoutError):
        return f"layout: {error}"
    if not isinstance(error, ValidationError):
        return f"internal error, please report it: {type(error).__name__}: {error}"
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    shown = [
        f"{'.'.join(str(part) for part in item['loc']) or 'line'}: {item['msg']}" for item in errors[:MAX_SHOWN_ERRORS]
    ]
    more = len(errors) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")

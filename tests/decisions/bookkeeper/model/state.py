"""The world: two clusters and a third, a schema, a subscription, two orchestrators, operators, and others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from decisions.bookkeeper.decide import decide, plan_steps
from schemas.bookie_answers import BookieAnswer, Step
from schemas.bookies import (
    BookieSnapshot,
    Bootstrap,
    ClusterEntry,
    Copy,
    CursorRecord,
    Directive,
    Failure,
    Generators,
    LedgerSeen,
    Position,
    Progress,
    Promotion,
    Request,
    SchemaRecord,
    SwitchSettings,
)

SCHEMA, CURSOR = "/schemas/t/n/s", "/managed-ledgers/t/n/persistent/t/c"
NOW, MADE = 1_763_000_000_000, 1_762_000_000_000
NAMES = ("old", "new", "third")
WHOLE, OPEN = "", "open"


@dataclass(frozen=True)
class Rules:
    """How much happens, and which protections there are."""

    commands: tuple[str, ...] = ("switch new",)
    """What operators ask for, in this order, each at any time."""
    takeovers: int = 1
    kills: int = 0
    others: tuple[str, ...] = ()
    """What others do, each once, at any time: `put`, `roll`, `roll back`, `fold`."""
    attributions: bool = True
    one_write: bool = True
    term: bool = True
    directive: bool = True
    stamps: bool = True
    expiry: bool = True
    early_deadline: bool = True
    """A deletion's deadline is fixed before the term is checked; False: when the deletion is asked for."""
    repair: bool = True
    open_cursor: bool = False
    """The subscription's ledger was left open by a broker that is gone: it has to be sealed."""


class Actor(NamedTuple):
    """An orchestrator: its term, what it is about to do, and how far it is with that."""

    term: int
    step: str = ""
    """A `Step` as JSON; empty: it looks next."""
    at: str = ""
    deadline: str = ""
    """Of what it deletes in this step: not fixed yet, `set`, or `passed`."""


class World(NamedTuple):
    """Everything."""

    clusters: tuple[tuple[str, str, int], ...]
    """Name, status, version."""
    directive: tuple[str, str, str, int] | None = None
    """Kind, source, target, epoch."""
    booted: bool = False
    positions: tuple[tuple[int, str | None], ...] = ((1, None),)
    schema_version: int = 0
    cursor: tuple[int, str | None] | None = (2, None)
    cursor_version: int = 0
    ledgers: tuple[frozenset[tuple[int, str]], ...] = (frozenset({(1, WHOLE), (2, WHOLE)}), frozenset(), frozenset())
    """By cluster: id, and who makes the half of it; `WHOLE`: it is closed and equal to all of its name; `OPEN`: it is
    the original, and not closed."""
    term: int = 0
    begun: frozenset[int] = frozenset()
    verified: frozenset[int] = frozenset()
    promoted: frozenset[tuple[str, int]] = frozenset()
    failed: frozenset[int] = frozenset()
    actors: tuple[Actor | None, Actor | None] = (None, None)
    commands: int = 0
    cleaning: bool = False
    takeovers: int = 0
    kills: int = 0
    others: frozenset[str] = frozenset()

    def on(self, cluster: str) -> dict[int, str]:
        """The ledgers of a cluster."""
        return dict(self.ledgers[NAMES.index(cluster)])

    def with_ledger(self, cluster: str, ledger: int, state: str | None) -> World:
        """The world with a ledger so; None: without it."""
        at, there = NAMES.index(cluster), self.on(cluster)
        there.pop(ledger, None)
        if state is not None:
            there[ledger] = state
        ledgers = list(self.ledgers)
        ledgers[at] = frozenset(there.items())
        return self._replace(ledgers=tuple(ledgers))

    def with_actor(self, which: int, actor: Actor | None) -> World:
        """The world with an orchestrator so."""
        actors = list(self.actors)
        actors[which] = actor
        return self._replace(actors=tuple(actors))

    def waited(self, term: int) -> World:
        """Return the world after who has this term has waited: the deadlines of those before it have passed."""
        actors = [
            one._replace(deadline="passed") if one and one.term < term and one.deadline else one for one in self.actors
        ]
        return self._replace(actors=(actors[0], actors[1]))

    @property
    def seen(self) -> World:
        """What a look shows: nothing of who looks."""
        return self._replace(
            actors=(None, None), commands=0, takeovers=0, kills=0, others=frozenset(), term=0, cleaning=False
        )


def beginning(rules: Rules) -> World:
    """Return the world with everything on `old`, which is ACTIVE."""
    world = World((("old", "ACTIVE", 0), ("new", "STANDBY", 0), ("third", "STANDBY", 0)))
    return world.with_ledger("old", 2, OPEN) if rules.open_cursor else world


@cache
def snapshot(world: World) -> BookieSnapshot:
    """What decisions see of it."""
    directive = None
    if world.directive is not None:
        kind, source, target, epoch = world.directive
        directive = Directive(kind=kind, source=source, target=target, epoch=epoch, target_ids_from=None)  # type: ignore[arg-type]
    positions = [Position(version=at, ledger=one, stamp=stamp) for at, (one, stamp) in enumerate(world.positions)]
    cursors = []
    if world.cursor is not None:
        cursors = [
            CursorRecord(path=CURSOR, version=world.cursor_version, ledger=world.cursor[0], stamp=world.cursor[1])
        ]
    progress = Progress(
        epoch=directive.epoch if directive else 1,
        begun=sorted(world.begun),
        verified=[_copy(one) for one in sorted(world.verified)],
        promoted=[
            Promotion(kind="cursor" if what == CURSOR else "schema", object=what, ledger=one, by=_by(what, one, world))
            for what, one in sorted(world.promoted)
        ],
        failed=[
            Failure(
                kind="cursor" if one in (2, 12, 13) else "schema",
                object=CURSOR if one in (2, 12, 13) else SCHEMA,
                ledger=one,
                reason="as it was",
            )
            for one in sorted(world.failed)
        ],
        promoted_at=NOW if world.promoted else None,
    )
    return BookieSnapshot(
        now=NOW + 1,
        operation="next",
        clusters=[
            ClusterEntry(name=name, metadata_service_uri=f"zk://{name}/ledgers", status=status, version=version)  # type: ignore[arg-type]
            for name, status, version in world.clusters
        ],
        bootstrap=Bootstrap(bootstrap_cluster_name="old", recorded_at=NOW) if world.booted else None,
        directive=directive,
        schemas=[SchemaRecord(path=SCHEMA, version=world.schema_version, positions=positions)],
        cursors=cursors,
        ledgers={name: _seen(world, name) for name in NAMES},
        progress=progress,
        # Ids are another matter: those that are made anew here are distinct.
        generators={name: Generators(long=(10 + at) << 32) for at, name in enumerate(NAMES)},
        settings=SwitchSettings(max_tries=1000, skip_idgen_precheck=True),
    )


@cache
def next_steps(world: World) -> tuple[Step, ...]:
    """What an orchestrator that looks would do."""
    return tuple(plan_steps(snapshot(world)).steps)


@cache
def deletions(world: World) -> tuple[Step, ...]:
    """What a cleanup that looks would delete."""
    answer = _asked(world, "cleanup", Request(dry_run=False, force=True))
    return tuple(one for one in answer.steps if one.action == "delete") if answer.action == "cleanup" else ()


@cache
def answer_of(world: World, command: str) -> BookieAnswer:
    """What a command would write."""
    name, _, target = command.partition(" ")
    if name == "switch":
        return _asked(world, "switch", Request(target=target))
    return _asked(world, "rollback", Request(dry_run=False, force=True))


def _asked(world: World, operation: str, request: Request) -> BookieAnswer:
    return decide(snapshot(world).model_copy(update={"operation": operation, "request": request}))


def _copy(ledger: int) -> Copy:
    return Copy(
        kind="cursor" if ledger == 2 else "schema",
        object=CURSOR if ledger == 2 else SCHEMA,
        ledger=ledger,
        last=2,
        length=600,
    )


def _by(what: str, ledger: int, world: World) -> str:
    rolled = what == CURSOR and world.cursor is not None and world.cursor[0] not in (ledger, -1)
    return "rollover" if rolled else "compare-and-set"


def _seen(world: World, cluster: str) -> list[LedgerSeen]:
    """As a look shows them; a half is open."""
    return [
        LedgerSeen(
            id=one,
            closed=state == WHOLE,
            last=2 if state == WHOLE else 0,
            length=600 if state == WHOLE else 0,
            created_at=MADE if one <= 2 else NOW + 1,
            custom={"ledger": str(one)},
        )
        for one, state in sorted(world.on(cluster).items())
    ]


__all__ = [
    "CURSOR",
    "NAMES",
    "SCHEMA",
    "WHOLE",
    "Actor",
    "Rules",
    "World",
    "answer_of",
    "beginning",
    "deletions",
    "next_steps",
    "replace",
    "snapshot",
]

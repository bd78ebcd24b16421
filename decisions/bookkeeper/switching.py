"""`switch` and `rollback`: requests that become a directive, in one transaction with the registry.

Stage: over `phases`, under `decide`. PIP-477 flips the statuses in two writes at the end; here they change together, in
the transaction that writes the directive (holes 3 and 10): from then on new ledgers belong on the target, and the
registry says so. A rollback is the same work the other way round under the next epoch, so what was written on the
target since is copied back and not lost (holes 1 and 6).
"""

from collections.abc import Iterator

from decisions.bookkeeper.account import BAD, UNKNOWN, BookieAccount
from decisions.bookkeeper.cleanup import HOUR_MS
from decisions.bookkeeper.gates import BookieGate
from decisions.bookkeeper.ids import next_id, precheck_ids, require_distinct
from decisions.bookkeeper.phases import SwitchStanding
from decisions.bookkeeper.seen import BookieView, require_routing
from decisions.bookkeeper.work import LedgerWork, Stage, ledger_works
from schemas.bookie_answers import Loss, Precheck
from schemas.bookies import Bootstrap, Directive


def source_of(seen: BookieView, target: str) -> str | None:
    """The cluster that a switch to `target` would come from: the ACTIVE one."""
    sources = [name for name in seen.active if name != target]
    return sources[0] if len(sources) == 1 else None


def known_target(seen: BookieView, account: BookieAccount) -> str | None:
    """The target of the request, if it is registered."""
    target = seen.snapshot.request.target or seen.snapshot.request.name
    if not account.require(BookieGate.REQUEST, target is not None, "name the target", BAD):
        return None
    assert target is not None
    return (
        target
        if account.require(BookieGate.REGISTERED, target in seen.clusters, f"{target} is not registered", UNKNOWN)
        else None
    )


def ask_for_precheck(seen: BookieView, account: BookieAccount) -> Precheck | None:
    """`precheck`: what `switch` would find."""
    if (target := known_target(seen, account)) is None:
        return None
    directive = seen.snapshot.directive
    # Of a switch that is under way the source is on record.
    again = directive is not None and directive.target == target
    source = directive.source if directive is not None and again else source_of(seen, target)
    account.require(BookieGate.NOT_ACTIVE, again or target not in seen.active, f"{target} is ACTIVE already")
    return precheck_ids(seen, source, target, account)


def ask_for_switch(
    seen: BookieView, account: BookieAccount, now: SwitchStanding
) -> tuple[str, Directive | None, Precheck | None]:
    """Return the answer to `switch`, the directive to write, and the precheck."""
    snapshot, directive = seen.snapshot, now.directive
    if (target := known_target(seen, account)) is None:
        return "hold", None, None
    if not require_routing(seen, account):
        return "hold", None, None
    if directive is not None and directive.target == target and (now.phase != "ROLLED_BACK"):
        # The same again: nothing new is written but the number of the attempt.
        lost = seen.lost()
        if not account.require(
            BookieGate.ATTRIBUTION,
            now.is_open or bool(now.works) or not lost,
            f"nobody knows where {len(lost)} ledgers are, such as {lost[0].ledger} of {lost[0].object}: "
            f"{lost[0].reason}"
            if lost
            else None,
        ):
            return "hold", None, None
        if not account.require(BookieGate.WORK, now.is_open or bool(now.works), f"everything is on {target}", 200):
            return "hold", None, None
        return "retry", _next_attempt(seen, directive), None
    account.require(
        BookieGate.NO_SWITCH,
        not now.is_open,
        f"the switch to {directive.target} is in {now.phase}: ask for {directive.target} again, or roll it back"
        if directive
        else None,
    )
    account.require(BookieGate.ONE_ACTIVE, len(seen.active) == 1, f"ACTIVE are: {', '.join(seen.active) or 'none'}")
    account.require(BookieGate.NOT_ACTIVE, target not in seen.active, f"{target} is ACTIVE already")
    unready = [broker for broker in snapshot.brokers if not broker.target_client]
    account.require(
        BookieGate.TARGET_CLIENT,
        not unready,
        f"the client of {unready[0].name} does not start: {unready[0].error or 'no reason given'}" if unready else None,
    )
    source = source_of(seen, target)
    checked = precheck_ids(seen, source, target, account)
    if account.binding is not None or source is None:
        return "hold", None, checked
    return "switch", _make_directive(seen, "switch", source, target, next_id(seen, target)), checked


def bootstrap_of(seen: BookieView, source: str | None) -> Bootstrap | None:
    """The record to be written with the first directive: what has no stamp until now is on the source."""
    if seen.snapshot.bootstrap is not None or source is None:
        return None
    return Bootstrap(bootstrap_cluster_name=source, recorded_at=seen.snapshot.now)


def ask_for_rollback(
    seen: BookieView, account: BookieAccount, now: SwitchStanding
) -> tuple[Directive | None, list[LedgerWork], list[Loss]]:
    """Return the directive of a rollback, its work, and what it would leave behind."""
    snapshot, request, directive = seen.snapshot, seen.snapshot.request, now.directive
    if not account.require(BookieGate.DIRECTIVE, directive is not None, code=UNKNOWN):
        return None, [], []
    assert directive is not None
    if directive.kind == "rollback":
        return _go_on_back(seen, account, now, directive), now.works, []
    source, target = directive.target, directive.source
    if not account.require(BookieGate.REGISTERED, target in seen.clusters, f"{target} is not registered", UNKNOWN):
        return None, [], []
    require_routing(seen, account)
    for cluster in (source, target):
        account.require(BookieGate.LISTED, seen.listed(cluster), f"the ledgers of {cluster} were not listed")
    require_distinct(seen, account, source, target)
    limit, since = snapshot.settings.rollback_window_hours * HOUR_MS, seen.progress.promoted_at
    elapsed = None if since is None else float(snapshot.now - since)
    account.require(
        BookieGate.ROLLBACK_WINDOW,
        request.force or elapsed is None or elapsed <= limit,
        f"it ended {0 if elapsed is None else (elapsed - limit) / HOUR_MS:.1f} h ago: --force rolls back all the same",
        measured=elapsed,
        limit=limit,
        margin=None if elapsed is None else limit - elapsed,
    )
    back = _make_directive(seen, "rollback", source, target, None)
    generators = snapshot.generators.get(target)
    account.require(
        BookieGate.TARGET_CLIENT, generators is None or generators.reachable, generators.error if generators else None
    )
    # New ids on the cluster of the switch must not be given again by the one that everything goes back to.
    fresh = _largest_new_id(seen, source, target)
    following = next_id(seen, target)
    if fresh >= 0:
        account.require(
            BookieGate.IDS_BEYOND,
            snapshot.settings.skip_idgen_precheck or (following is not None and following > fresh),
            f"{source} has made ledgers up to {fresh}: advance {target} with "
            f"'anabranch bookies precheck --name {target} --advance'",
            measured=None if following is None else float(following),
            limit=float(fresh),
            margin=None if following is None else float(following - fresh),
        )
        back = back.model_copy(update={"target_ids_from": following})
    todo = ledger_works(_as_rollback(seen, back), back)
    losses = list(_losses_of_switch(seen, todo, source, target))
    account.require(
        BookieGate.NOTHING_LOST,
        not losses or request.accept_loss,
        f"{len(losses)} would stay behind, such as {losses[0].object}: {losses[0].detail}. --accept-loss leaves them"
        if losses
        else None,
        measured=float(len(losses)),
        limit=0.0,
    )
    account.require(BookieGate.DRY_RUN, not request.dry_run, "--no-dry-run rolls back")
    return (None if account.binding else back), todo, losses


def _largest_new_id(seen: BookieView, source: str, target: str) -> int:
    """Return the largest id on the source that the target lacks, counted data ledgers included, or -1."""
    generators = seen.snapshot.generators.get(source)
    largest = generators.largest if generators is not None and seen.snapshot.data_ledgers.get(source) else None
    lacking = (ledger for ledger in seen.ledgers(source) if seen.ledger(target, ledger) is None)
    return max(max(lacking, default=-1), -1 if largest is None else largest)


def _go_on_back(
    seen: BookieView, account: BookieAccount, now: SwitchStanding, directive: Directive
) -> Directive | None:
    """Return the next attempt of a rollback in progress, whose losses and window were judged at its start."""
    require_routing(seen, account)
    done = f"everything is back on {directive.target}; 'anabranch bookies switch' asks for the next switch"
    account.require(BookieGate.WORK, now.is_open or bool(now.works) or bool(seen.lost()), done, 200)
    account.require(BookieGate.DRY_RUN, not seen.snapshot.request.dry_run, "--no-dry-run goes on with the rollback")
    return None if account.binding else _next_attempt(seen, directive)


def _next_attempt(seen: BookieView, directive: Directive) -> Directive:
    """Return the same directive with the next attempt: what failed is tried again."""
    return directive.model_copy(update={"attempt": directive.attempt + 1, "ts": seen.snapshot.now})


def _losses_of_switch(seen: BookieView, todo: list[LedgerWork], source: str, target: str) -> Iterator[Loss]:
    for work in todo:
        if work.stage is Stage.FAIL:
            yield Loss(kind=work.item.kind, object=work.item.object, ledger=work.item.ledger, detail=work.reason)
    for item in seen.items:
        if item.how == "corruption" and item.kind != "data":
            yield Loss(kind=item.kind, object=item.object, ledger=item.ledger, detail=item.reason or "not known")
        # Data ledgers are never copied: brokers that go by attributions go on reading them there.
        if item.kind == "data" and item.cluster == source and seen.snapshot.routing == "stock":
            yield Loss(
                kind="data",
                object=item.object,
                ledger=item.ledger,
                detail=f"brokers that know {target} only would remove it from the topic",
            )
    data = seen.snapshot.data_ledgers.get(source, 0)
    if data and seen.snapshot.routing == "stock":
        detail = f"brokers that know {target} only would remove {data} data ledgers from their topics"
        yield Loss(kind="data", object="/managed-ledgers", detail=detail)


def _make_directive(seen: BookieView, kind: str, source: str, target: str, ids_from: int | None) -> Directive:
    former = seen.snapshot.directive
    return Directive(
        kind=kind,  # type: ignore[arg-type]
        source=source,
        target=target,
        epoch=former.epoch + 1 if former else 1,
        ts=seen.snapshot.now,
        origin=seen.snapshot.request.origin,
        target_ids_from=ids_from,
        version=former.version if former else 0,
    )


def _as_rollback(seen: BookieView, back: Directive) -> BookieView:
    return BookieView(seen.snapshot.model_copy(update={"directive": back}), seen.bootstrap)

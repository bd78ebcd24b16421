"""Entry of the family: decide what to do now with a switch or a command, with every gate. Pure.

Stage: over `registry`, `switching` and `cleanup` (commands) and `work` (steps of a switch).
"""

from typing import Any

from decisions.bookkeeper.account import BookieAccount
from decisions.bookkeeper.cleanup import plan_cleanup, require_window
from decisions.bookkeeper.gates import SENTENCES, BookieGate
from decisions.bookkeeper.ids import check_ids_apart, require_distinct
from decisions.bookkeeper.invariants import find_violations, unseen_invariants
from decisions.bookkeeper.phases import SwitchStanding, switch_standing
from decisions.bookkeeper.registry import flip_active, flip_step, register_cluster, unregister_cluster
from decisions.bookkeeper.seen import BookieView, attribution_of, require_routing
from decisions.bookkeeper.switching import ask_for_precheck, ask_for_rollback, ask_for_switch, bootstrap_of
from decisions.bookkeeper.uris import BadUri
from decisions.bookkeeper.work import Stage, build_steps, ledger_failures, promote_steps
from schemas.bookie_answers import BookieAnswer, Step
from schemas.bookies import BookieSnapshot, ClusterEntry, Directive


def decide(snapshot: BookieSnapshot) -> BookieAnswer:
    """The answer to a snapshot. Total: a snapshot that is valid has one."""
    seen = BookieView(snapshot)
    if snapshot.bootstrap is None and snapshot.directive is None and len(seen.active) == 1:
        # The first switch writes the record: until then all is on the only cluster that there was.
        seen = BookieView(snapshot, bootstrap_of(seen, seen.active[0]))
    account, now = BookieAccount(), switch_standing(seen)
    try:
        return _OPERATIONS[snapshot.operation](seen, account, now)
    except BadUri as error:
        account.require(BookieGate.URI, False, f"in the registry: {error}")
        return _make_answer(seen, account, now, "hold")


def plan_steps(snapshot: BookieSnapshot) -> BookieAnswer:
    """Return `next` with all steps that are due, for an orchestrator that limits its parallel work itself."""
    seen = BookieView(snapshot)
    return _answer_next(seen, BookieAccount(), switch_standing(seen), at_once=False)


def _answer_next(seen: BookieView, account: BookieAccount, now: SwitchStanding, at_once: bool = True) -> BookieAnswer:
    snapshot, directive = seen.snapshot, now.directive
    if not account.require(BookieGate.DIRECTIVE, directive is not None, code=200):
        return _make_answer(seen, account, now, "hold")
    assert directive is not None
    if now.phase in ("DONE", "ROLLED_BACK"):
        return _make_answer(seen, account, now, "done")
    for name in (directive.source, directive.target):
        if not account.require(BookieGate.REGISTERED, name in seen.clusters, f"{name} is not registered", 404):
            return _make_answer(seen, account, now, "hold")
    holder = snapshot.orchestrator
    if holder is not None and snapshot.self_name is not None:
        mine = holder.holder == snapshot.self_name or holder.until <= snapshot.now
        account.require(
            BookieGate.ORCHESTRATOR,
            mine,
            f"{holder.holder} holds the lease for {holder.until - snapshot.now} ms more",
            eligible_at=None if mine else holder.until,
        )
    if not account.binding and now.phase == "SWITCH_TRIGGERED" and require_routing(seen, account):
        after = flip_active(seen, directive.target, "DEPRECATED" if directive.kind == "switch" else "STANDBY")
        active = ", ".join(seen.active) or "no cluster"
        step = flip_step(
            seen, after, directive.epoch, now.phase, f"{active} is ACTIVE, {directive.target} was asked for"
        )
        return _make_answer(seen, account, now, "steps", steps=[step], registry=after)
    behind = [broker for broker in snapshot.brokers if broker.epoch < directive.epoch or not broker.target_client]
    account.require(
        BookieGate.BROKERS_FOLLOW,
        not behind,
        f"{behind[0].name}: {behind[0].error or f'it is at epoch {behind[0].epoch}'}" if behind else None,
    )
    for name in (directive.source, directive.target):
        account.require(BookieGate.LISTED, seen.listed(name), f"the ledgers of {name} were not listed")
    for name in (directive.source, directive.target):
        generators = snapshot.generators.get(name)
        if generators is not None and not generators.reachable and name == directive.target:
            account.require(BookieGate.TARGET_CLIENT, False, generators.error)
    origins = {work.source for work in now.works if work.source} - {directive.source, directive.target}
    require_distinct(seen, account, directive.source, directive.target, *sorted(origins))
    check_ids_apart(seen, account)
    if account.binding:
        return _make_answer(seen, account, now, "hold")
    steps = list(build_steps(seen, directive, now.works)) or [
        *now.rollovers,
        *promote_steps(seen, directive, now.works),
    ]
    for work in now.works:
        if work.gate is not None:
            account.note(work.gate, False, f"{work.item.object}#{work.item.ledger}", work.reason)
    if steps and not require_routing(seen, account):
        return _make_answer(seen, account, now, "hold")
    if steps:
        chosen = _at_once(seen, account, steps) if at_once else steps
        return _make_answer(seen, account, now, "steps", steps=chosen)
    if now.phase == "CLEANUP":
        if require_window(seen, account):
            account.require(BookieGate.ASKED, False, "'anabranch bookies cleanup' shows what would be deleted", 200)
        account.code = 200
        return _make_answer(seen, account, now, "hold")
    return _make_answer(seen, account, now, "done")


def _at_once(seen: BookieView, account: BookieAccount, steps: list[Step]) -> list[Step]:
    """Return as many steps as may be worked on together, without those in progress."""
    flying = frozenset(seen.progress.in_flight)
    free = [step for step in steps if step.object not in flying]
    for step in steps:
        if step.object in flying:
            account.note(BookieGate.IN_FLIGHT, False, step.object)
    # What is only written down takes no place.
    noted = [step for step in free if step.action in ("fail", "rollover_fallback")]
    limited = [step for step in free if step.action not in ("fail", "rollover_fallback")]
    free_slots = max(seen.snapshot.settings.migration_concurrency - len(flying), 0)
    if limited[free_slots:]:
        account.note(
            BookieGate.CONCURRENCY,
            False,
            limited[free_slots].object,
            f"{len(limited) - free_slots} steps wait, this is the first of them",
        )
    return [*noted, *limited[:free_slots]]


def _answer_status(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    return _answer_next(seen, account, now).model_copy(update={"steps": []})


def _answer_register(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    after = register_cluster(seen, account)
    if after is None or account.binding:
        return _make_answer(seen, account, now, "hold")
    name = seen.snapshot.request.name or ""
    if after and seen.clusters.get(name) in after and all(seen.clusters.get(entry.name) == entry for entry in after):
        return _make_answer(seen, account, now, "done", reason=f"{name} is registered so already", registry=after)
    return _make_answer(
        seen, account, now, "register", registry=after, steps=[_write_step(seen, name, "write_registry", after)]
    )


def _answer_unregister(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    name, directive = seen.snapshot.request.name or "", now.directive
    if directive is not None and now.is_open and name in (directive.source, directive.target):
        account.require(BookieGate.NO_SWITCH, False, f"{name} is part of the switch in {now.phase}")
    after = unregister_cluster(seen, account)
    if after is None or account.binding:
        return _make_answer(seen, account, now, "hold")
    return _make_answer(
        seen, account, now, "unregister", registry=after, steps=[_write_step(seen, name, "remove_registry", after)]
    )


def _answer_precheck(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    precheck = ask_for_precheck(seen, account)
    return _make_answer(seen, account, now, "hold" if account.binding else "ready", precheck=precheck)


def _answer_switch(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    action, directive, checked = ask_for_switch(seen, account, now)
    if directive is None:
        return _make_answer(seen, account, now, "hold", precheck=checked)
    if action == "retry":
        return _make_answer(seen, account, now, action, directive=directive)
    return _answer_request(
        seen, account, now, action, directive, precheck=checked, bootstrap=bootstrap_of(seen, directive.source)
    )


def _answer_rollback(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    back, todo, losses = ask_for_rollback(seen, account, now)
    goes_on = now.directive is not None and now.directive.kind == "rollback"
    planned = (
        now.directive
        if goes_on
        else back
        or (
            now.directive
            and now.directive.model_copy(
                update={
                    "source": now.directive.target,
                    "target": now.directive.source,
                    "epoch": now.directive.epoch + 1,
                }
            )
        )
    )
    steps = [] if planned is None else [*build_steps(seen, planned, todo), *promote_steps(seen, planned, todo)]
    if back is None:
        _dry_is_no_refusal(account)
        return _make_answer(seen, account, now, "hold", steps=steps, losses=losses)
    if goes_on:
        return _make_answer(seen, account, now, "retry", directive=back, steps=steps)
    return _answer_request(seen, account, now, "rollback", back, losses=losses, plan=steps)


def _answer_cleanup(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    steps = plan_cleanup(seen, account)
    if account.binding:
        _dry_is_no_refusal(account)
        return _make_answer(seen, account, now, "hold", steps=steps)
    return _make_answer(
        seen, account, now, "cleanup" if any(step.action == "delete" for step in steps) else "done", steps=steps
    )


def _dry_is_no_refusal(account: BookieAccount) -> None:
    if account.binding is not None and account.binding.gate == BookieGate.DRY_RUN.value:
        account.code = 200


def _answer_resolve(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    return _make_answer(seen, account, now, "done", attributions=[attribution_of(item) for item in seen.items])


def _answer_check(seen: BookieView, account: BookieAccount, now: SwitchStanding) -> BookieAnswer:
    return _make_answer(seen, account, now, "done", violations=find_violations(seen), unseen=unseen_invariants(seen))


def _answer_request(
    seen: BookieView,
    account: BookieAccount,
    now: SwitchStanding,
    action: str,
    directive: Directive,
    plan: list[Step] | None = None,
    **more: Any,
) -> BookieAnswer:
    after = flip_active(seen, directive.target, "DEPRECATED" if directive.kind == "switch" else "STANDBY")
    flip = flip_step(seen, after, directive.epoch, "SWITCH_TRIGGERED", f"{action} to {directive.target}")
    return _make_answer(
        seen, account, now, action, directive=directive, registry=after, steps=[flip, *(plan or [])], **more
    )


def _write_step(seen: BookieView, name: str, action: Any, after: list[ClusterEntry]) -> Step:
    there = {entry.name: entry for entry in after}
    changed = [entry for entry in {**seen.clusters, **there} if seen.clusters.get(entry) != there.get(entry)]
    versions = {entry: seen.clusters[entry].version if entry in seen.clusters else None for entry in sorted(changed)}
    return Step(
        epoch=seen.snapshot.directive.epoch if seen.snapshot.directive else 0,
        phase="REGISTERED",
        kind="registry",
        object=name,
        action=action,
        expectation={"versions": versions},
        reason="asked for",
    )


def _make_answer(
    seen: BookieView, account: BookieAccount, now: SwitchStanding, action: str, **more: Any
) -> BookieAnswer:
    snapshot, directive, bound = seen.snapshot, now.directive, account.binding
    failed = ledger_failures(now.works, directive) if directive else []
    lost = [entry.item.object for entry in now.works if entry.stage is Stage.LOST]
    rollovers = [entry.object for entry in seen.progress.promoted if entry.by == "rollover"] + [
        entry.object for entry in now.rollovers
    ]
    again = bool(failed or lost) and directive is not None
    more.setdefault("attributions", seen.unknown())
    more.setdefault("reason", None if bound is None else bound.detail or SENTENCES[BookieGate(bound.gate)])
    return BookieAnswer(
        cluster=snapshot.cluster,
        operation=snapshot.operation,
        action=action,
        code=account.code,  # type: ignore[arg-type]
        gate=bound.gate if bound else None,
        phase=now.phase,
        epoch=directive.epoch if directive else None,
        failed_ledgers=failed,
        promoted_via_rollover_fallback=rollovers,
        not_promoted=lost,
        counts=_count_ledgers(seen, now),
        readings=account.readings,
        retry=command_of(directive) if directive and again else None,
        **more,
    )


def command_of(directive: Directive) -> str:
    """Return the command that goes on with a directive, and tries again what failed."""
    verb = f"switch --target {directive.target}" if directive.kind == "switch" else "rollback"
    return f"anabranch bookies {verb} --no-dry-run"


def _count_ledgers(seen: BookieView, now: SwitchStanding) -> dict[str, int]:
    if now.directive is None:
        return {}
    source, target = now.directive.source, now.directive.target
    on_source = sum(1 for item in seen.items if item.kind != "data" and item.cluster == source)
    elsewhere = sum(1 for item in seen.items if item.kind != "data" and item.cluster not in (None, source, target))
    on_target = sum(1 for item in seen.items if item.kind != "data" and item.cluster == target)
    return {
        "onSource": on_source,
        "onTarget": on_target,
        "leftBehind": elsewhere,
        "toCopy": now.count(Stage.COPY, Stage.UNLOAD, Stage.SEAL),
        "toVerify": now.count(Stage.VERIFY),
        "toPromote": now.count(Stage.BUILT),
        "failed": now.count(Stage.FAIL, Stage.FAILED),
        "lost": now.count(Stage.LOST),
        "notKnown": len(seen.unknown()),
        "oldCopies": now.old_copies,
        "dataLedgersOnSource": sum(1 for item in seen.items if item.kind == "data" and item.cluster == source)
        + seen.snapshot.data_ledgers.get(source, 0),
    }


_OPERATIONS = {
    "next": _answer_next,
    "status": _answer_status,
    "register": _answer_register,
    "unregister": _answer_unregister,
    "precheck": _answer_precheck,
    "switch": _answer_switch,
    "cleanup": _answer_cleanup,
    "rollback": _answer_rollback,
    "resolve": _answer_resolve,
    "check": _answer_check,
}

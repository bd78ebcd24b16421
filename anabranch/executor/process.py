"""The executor as a process: assembles its parts from the settings and stops on two signals.

Stage: called by `anabranch serve executor`. Faults of the lake are reported before any work begins.
"""

import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from uuid import uuid4

from anabranch.admin.topics import ScalableTopics
from anabranch.admin.transport import Transport, controller_transport
from anabranch.executor.autoscale.actor import AutoscaleActor
from anabranch.executor.bundles.actor import BundlesActor
from anabranch.executor.kernel.announcer import Announcer, follow_outcomes
from anabranch.executor.kernel.attempt import DecisionWork
from anabranch.executor.kernel.decision import follow_decisions
from anabranch.executor.kernel.family import Actors
from anabranch.executor.kernel.loop import Executor, utc_now
from anabranch.executor.kernel.outages import LAKE_ERRORS
from anabranch.executor.kernel.outcomes import OutcomeLedger, Shard, process_name, shut_out_older
from anabranch.executor.kernel.publisher import KafkaPublisher
from anabranch.executor.metrics import registry_of
from anabranch.executor.shards.holding import Holding, StopSignal
from anabranch.executor.shards.members import Member, Unlike, part_of, shard_of
from anabranch.executor.shards.register import MemberRegister
from anabranch.safeguards.record import WaitTable
from anabranch.safeguards.waiting import Brakes
from lake.brakes import BrakeLog
from lake.upkeep import Upkeep
from runtime.telemetry.health import ProcessHealth, call_on_signals
from runtime.telemetry.serving import MetricsError, serve_metrics
from schemas.settings.root import Settings
from schemas.tables.rows import BRAKES, OUTCOMES, WAITS

STALLED_SECONDS = 300.0
"""Minimum time without a pass of a loop before the executor counts as stalled: a slow lake takes less."""


class ExecutorStartError(Exception):
    """The executor cannot start; the message says what is wrong and what to do."""


def run_executor(settings: Settings, ready: Callable[[str], None]) -> None:
    """Apply decisions until SIGTERM or SIGINT.

    `ready` gets one line once this executor knows its shards. Raises `ExecutorStartError`, or `lake.lease.LeaseLost`
    when another executor has taken over.
    """
    chosen = settings.executor
    transport = controller_transport(settings, "anabranch-executor", chosen.request_timeout_seconds)

    def executor_of(number: int, lease_token: int, may_call: Callable[[], bool]) -> Executor:
        shard = Shard(number, lease_token, lambda subject: shard_of(subject, chosen.shards) == number)
        limited = chosen.model_copy(update={"brakes": part_of(chosen.brakes, number, chosen.shards)})
        ledger = OutcomeLedger(settings.lake_path, chosen.mode, shard, ELSEWHERE)
        record, waits = BrakeLog(settings.lake_path), WaitTable(settings.lake_path, ledger.executor, number)
        brakes: Brakes[DecisionWork] = Brakes(limited, record, waits, ledger.executor, utc_now, time.monotonic)
        announcer = Announcer(KafkaPublisher(settings.kafka_connection()), follow_outcomes(settings.lake_path))
        tail = follow_decisions(settings.lake_path)
        actors = actors_of(transport, observes=chosen.mode == "observe")
        return Executor(limited, tail, ledger, actors, announcer, brakes, holds_lease=may_call, elsewhere=ELSEWHERE)

    def say(open_decisions: Mapping[int, int]) -> None:
        shards = f"shards {', '.join(map(str, open_decisions))} of {chosen.shards}" if open_decisions else "standing by"
        ready(
            f"executor ready: mode {chosen.mode}, {shards}, {sum(open_decisions.values())} open decisions, applying at "
            f"{settings.controller.url}"
        )

    me = Member(
        f"{process_name()}-{uuid4().hex[:8]}",
        chosen.mode,
        chosen.shards,
        chosen.lease_seconds,
        datetime.now(timezone.utc),
    )
    stop = StopSignal()
    call_on_signals(stop.set)
    try:
        shut_out_older(settings.lake_path)
        register = MemberRegister(settings.lake_path)
        holding = Holding(
            register, me, chosen.request_timeout_seconds, lambda *shard: ShardWork(lambda: executor_of(*shard))
        )
        with Upkeep(settings.lake_path, (OUTCOMES, WAITS, BRAKES), settings.lake.compact_minutes) as upkeep:
            if chosen.metrics_port:
                registry = registry_of(
                    lambda: [executor for work in holding.works for executor in work.executors], lambda: upkeep.files
                )
                serve_metrics(
                    registry,
                    chosen.metrics_port,
                    "executor.metrics_port",
                    settings.metrics,
                    "executor",
                    health_of(holding, chosen.lease_seconds),
                )
            holding.run(stop, say)
    except MetricsError as error:
        raise ExecutorStartError(str(error)) from error
    except LAKE_ERRORS as error:
        raise ExecutorStartError(f"cannot read the lake at {settings.lake_path}: {error}; see [lake] path") from error
    except Unlike as error:
        raise ExecutorStartError(str(error)) from error
    finally:
        transport.close()


class ShardWork:
    """Executor of one shard, in its own thread: reading the record may take longer than a heartbeat."""

    def __init__(self, make: Callable[[], Executor]) -> None:
        """`make` is called in the thread."""
        self._make, self._stopping = make, False
        self.executors: list[Executor] = []
        """The working executor, once it is made."""
        self._failure: BaseException | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def has_begun(self) -> bool:
        """True once the record has been read."""
        return self._begun.is_set()

    @property
    def open_decisions(self) -> int | None:
        """Number of open decisions; None: the record has not been read yet."""
        return self.executors[0].open_decisions if self.has_begun else None

    def stop(self) -> None:
        """Ask the work to end; returns at once."""
        self._stopping = True
        for executor in self.executors:
            executor.stop()

    @property
    def ended(self) -> bool:
        """True once it has ended with no call out. Raises the error that it failed with."""
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return not any(executor.has_calls_out for executor in self.executors)

    def _run(self) -> None:
        try:
            executor = self._make()
            self.executors.append(executor)
            if self._stopping:
                executor.stop()
            executor.run(self._begun.set)
        except BaseException as error:
            self._failure = error


def health_of(holding: Holding[ShardWork], lease_seconds: float) -> ProcessHealth:
    """Return the health of an executor; on stand-by, without a shard, it is ready."""
    limit = max(STALLED_SECONDS, 5 * lease_seconds)

    def stalled() -> str | None:
        passes = [holding.looped_at, *(work.executors[0].looped_at for work in holding.works if work.has_begun)]
        seconds = time.monotonic() - min(passes)
        return f"no pass of a loop for {seconds:.0f} s (limit: {limit:g} s)" if seconds > limit else None

    def not_ready() -> str | None:
        if not holding.is_member:
            return "this executor has not joined the others yet"
        return None if all(work.has_begun for work in holding.works) else "the record has not been read yet"

    return ProcessHealth(stalled, not_ready)


ELSEWHERE = frozenset({"bookies"})
"""Families applied by other processes: the orchestrator of `anabranch bookies` records its own work."""


def actors_of(transport: Transport, *, observes: bool = False) -> Actors:
    """Return the actors of all built-in families by name. `observes`: no calls are made."""
    return {
        "autoscale": AutoscaleActor(ScalableTopics(transport)),
        "bundles": BundlesActor(transport, observes=observes),
    }

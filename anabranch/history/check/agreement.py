"""Rules on the agreement of several tables, each a question in SQL whose rows are the violations.

Stage: under `anabranch.history.check.rows`, which asks. A row of an answer fills the columns of the rule's text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone

from anabranch.query.sql import RECORDED_BY
from schemas.tables.rows import (
    BATCHES,
    BRAKES,
    DEAD_LETTERS,
    DECISIONS,
    EVENTS,
    HOLDS,
    OUTCOMES,
    SEGMENT_LOAD,
    TABLES,
    WAITS,
    Table,
)

SKEW = timedelta(minutes=1)
"""Longest lag of an executor's clock behind the job's."""
HEARD_WITHIN = timedelta(minutes=10)
"""An end that is older, and that the job has not recorded, is one that it has not heard of."""
_BY_BATCH = (DECISIONS, HOLDS, EVENTS, SEGMENT_LOAD, DEAD_LETTERS)
_OWN_TIME = {**RECORDED_BY, BATCHES.name: "batch_at"}
"""The column that a row's `day` is of."""


@dataclass(frozen=True)
class AgreementRule:
    """Question that has an empty answer in an intact lake."""

    kind: str
    """One of `anabranch.history.check.findings.REMEDIES`."""
    table: Table
    needs: tuple[Table, ...]
    sql: str
    text: str
    """With the columns of the question in braces."""


def rules(batches_since: date | None, has_all_events: bool) -> Iterator[AgreementRule]:
    """Yield all rules for rows from `batches_since` on; `has_all_events`: no event is forgotten."""
    yield from _of_decisions()
    yield _brakes()
    yield from (_of_day(table) for table in TABLES.values())
    yield from (_of_no_batch(table, batches_since) for table in _BY_BATCH)
    yield _followed(batches_since)
    if has_all_events and batches_since is None:
        yield _evaluations()


def _of_decisions() -> Iterator[AgreementRule]:
    yield AgreementRule(
        "duplicate",
        DECISIONS,
        (DECISIONS, BATCHES),
        # With a new checkpoint the same may be decided once more.
        "SELECT decision_id, subject, count(*) AS number FROM decisions WHERE family <> 'bookies' "
        "GROUP BY decision_id, subject "
        "HAVING count(*) > (SELECT greatest(count(DISTINCT generation), 1) FROM batches) AND "
        "count(DISTINCT decided_at) > 1 ORDER BY decision_id",
        "decision {decision_id} of {subject} was taken {number} times by one checkpoint",
    )
    yield AgreementRule(
        "ended twice",
        OUTCOMES,
        (OUTCOMES,),
        "SELECT decision_id, min(subject) AS subject, min(status) AS one, max(status) AS other FROM outcomes "
        "WHERE status <> 'intent' GROUP BY decision_id HAVING min(status) <> max(status) ORDER BY decision_id",
        "decision {decision_id} of {subject} ended as `{one}` and as `{other}`",
    )
    yield AgreementRule(
        "ended otherwise",
        OUTCOMES,
        (OUTCOMES, EVENTS, BATCHES),
        # Where two lakes share one Kafka, the job may record the other executor's end of the same decision first.
        "SELECT o.decision_id, min(o.subject) AS subject, min(o.status) AS status, min(e.cause) AS heard "
        "FROM outcomes o JOIN events e ON e.decision_id = o.decision_id AND e.type = 'outcome' "
        "WHERE o.status <> 'intent' GROUP BY o.decision_id "
        "HAVING max(CASE WHEN o.status = e.cause THEN 1 ELSE 0 END) = 0 AND max(o.at) < "
        f"(SELECT max(batch_at) FROM batches) - INTERVAL '{HEARD_WITHIN.seconds} seconds' ORDER BY o.decision_id",
        "decision {decision_id} of {subject} ended as `{status}`, and the job has recorded `{heard}`",
    )
    yield AgreementRule(
        "lost end",
        OUTCOMES,
        (OUTCOMES, EVENTS, DECISIONS, WAITS),
        # An end is committed before it is announced, and ends are committed in the order of their times.
        "SELECT e.decision_id, e.subject, min(e.cause) AS heard, min(e.accepted_at) AS at FROM events e "
        "LEFT SEMI JOIN decisions d ON d.decision_id = e.decision_id "
        "LEFT ANTI JOIN (SELECT decision_id FROM outcomes WHERE status <> 'intent' "
        "UNION ALL SELECT decision_id FROM waits) o ON o.decision_id = e.decision_id "
        "WHERE e.type = 'outcome' AND e.accepted_at < "
        f"(SELECT max(at) FROM outcomes WHERE status <> 'intent') - INTERVAL '{SKEW.seconds} seconds' "
        "GROUP BY e.decision_id, e.subject ORDER BY at",
        "the job has recorded at {at} that decision {decision_id} of {subject} ended as `{heard}`; no row says so",
    )
    first = "SELECT decision_id, min(decided_at) AS decided_at FROM decisions GROUP BY decision_id"
    for table in (OUTCOMES, WAITS):
        yield AgreementRule(
            "too early",
            table,
            (table, DECISIONS),
            f"SELECT o.decision_id, o.subject, o.at, d.decided_at FROM {table.name} o JOIN ({first}) d "
            f"ON d.decision_id = o.decision_id WHERE o.at < d.decided_at - INTERVAL '{SKEW.seconds} seconds' "
            "ORDER BY o.at",
            "decision {decision_id} of {subject}: a row at {at}, and it was taken at {decided_at}",
        )
        yield AgreementRule(
            "another subject",
            table,
            (table, DECISIONS),
            f"SELECT DISTINCT o.decision_id, o.subject, d.subject AS of FROM {table.name} o JOIN decisions d "
            "ON d.decision_id = o.decision_id WHERE o.subject <> d.subject OR o.family <> d.family "
            "ORDER BY o.decision_id",
            "decision {decision_id} is of {of}; a row says {subject}",
        )


def _brakes() -> AgreementRule:
    return AgreementRule(
        "gap",
        BRAKES,
        (BRAKES,),
        "SELECT number, expected FROM (SELECT number, coalesce(lag(number) OVER (ORDER BY number), 0) + 1 AS expected "
        "FROM (SELECT DISTINCT number FROM brakes)) WHERE number <> expected ORDER BY number",
        "act {number} follows none: {expected} should be the next",
    )


def _of_day(table: Table) -> AgreementRule:
    column = _OWN_TIME[table.name]
    return AgreementRule(
        "wrong day",
        table,
        (table,),
        f"SELECT day, CAST({column} AS DATE) AS expected, count(*) AS number, min({column}) AS first FROM {table.name} "
        f"WHERE day <> CAST({column} AS DATE) GROUP BY day, CAST({column} AS DATE) ORDER BY day",
        "day {day} has {number} rows of {expected}, the first of {first}: questions about a day miss them",
    )


def _of_no_batch(table: Table, since: date | None) -> AgreementRule:
    """Return the rule against rows without the row of their batch.

    Only the running batch, or one that was cut off at the end of a checkpoint, may have left some. `since` as of
    `rules`.
    """
    column = _OWN_TIME[table.name]
    begin = datetime.combine(since, time(), timezone.utc) if since else datetime(1970, 1, 1, tzinfo=timezone.utc)
    return AgreementRule(
        "lost batch",
        BATCHES,
        (table, BATCHES),
        f"WITH rows AS (SELECT batch_id, {column} AS at, count(*) AS number FROM {table.name} "
        f"WHERE {'family <> ' + repr('bookies') if table is DECISIONS else 'true'} "
        f"AND {column} >= TIMESTAMP '{begin:%Y-%m-%d %H:%M:%S}' GROUP BY batch_id, {column}), "
        "points AS (SELECT batch_at AS at, batch_id, generation, CAST(NULL AS BIGINT) AS number FROM batches "
        "UNION ALL SELECT r.at, r.batch_id, NULL, r.number FROM rows r "
        "LEFT ANTI JOIN batches b ON b.batch_id = r.batch_id AND b.batch_at = r.at), "
        "between AS (SELECT *, "
        "last_value(generation) IGNORE NULLS OVER (ORDER BY at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) "
        "AS before, "
        "first_value(generation) IGNORE NULLS OVER (ORDER BY at ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) "
        "AS after FROM points) "
        "SELECT batch_id, at, number FROM between WHERE number IS NOT NULL AND after IS NOT NULL "
        "AND coalesce(before = after, true) ORDER BY at",
        f"batch {{batch_id}} at {{at}} is not there; {table.name} has {{number}} rows of it",
    )


def _followed(since: date | None) -> AgreementRule:
    """Return the rule that each row of a batch names the row before it. `since` as of `rules`.

    Ids alone would not do: a batch that read only markers of transactions, or what compaction removed, has no row.
    """
    begin = datetime.combine(since or date(1970, 1, 1), time())
    # The first one kept may follow a forgotten one.
    first = "" if since is None else "AND NOT is_first "
    return AgreementRule(
        "lost batch",
        BATCHES,
        (BATCHES,),
        "WITH kept AS (SELECT *, row_number() OVER (PARTITION BY generation ORDER BY batch_id) = 1 AS is_first "
        f"FROM batches WHERE batch_at >= TIMESTAMP '{begin:%Y-%m-%d %H:%M:%S}') "
        "SELECT b.generation, b.batch_id, b.batch_at AS at, b.previous FROM kept b "
        "LEFT ANTI JOIN batches p ON p.generation = b.generation AND p.batch_id = b.previous "
        f"WHERE b.previous IS NOT NULL {first}ORDER BY b.batch_at",
        "generation {generation}: batch {batch_id} at {at} follows batch {previous}, which is not there",
    )


def _evaluations() -> AgreementRule:
    """Return the rule on the number of evaluations of a batch.

    A tick evaluates each known topic, other batches at most the topics of their events and samples.
    """
    return AgreementRule(
        "unbalanced",
        BATCHES,
        (BATCHES, EVENTS, DECISIONS, HOLDS),
        "WITH clusters AS (SELECT count(DISTINCT subject) AS number FROM (SELECT family, subject FROM decisions "
        "UNION ALL SELECT family, subject FROM holds) WHERE family = 'bundles'), "
        "about AS (SELECT batch_id, accepted_at, max(CASE WHEN type = 'tick' AND subject = '*' THEN 1 ELSE 0 END) AS "
        "is_tick, count(DISTINCT CASE WHEN type IN ('tick', 'layout', 'consumer', 'outcome') THEN subject END) AS "
        "subjects FROM events GROUP BY batch_id, accepted_at), "
        "spans AS (SELECT valid_from, valid_to FROM layout_spans WHERE valid_to IS NULL OR valid_to > valid_from), "
        "points AS (SELECT valid_from AS at, 0 AS place, 1 AS more, NULL AS batch_id, NULL AS generation, "
        "NULL AS evaluations, NULL AS samples FROM spans "
        "UNION ALL SELECT valid_to, 0, -1, NULL, NULL, NULL, NULL FROM spans WHERE valid_to IS NOT NULL "
        "UNION ALL SELECT batch_at, 1, 0, batch_id, generation, evaluations, samples_accepted FROM batches), "
        "counted AS (SELECT *, sum(more) OVER (ORDER BY at, place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) "
        "AS topics FROM points) "
        "SELECT c.generation, c.batch_id, c.at, c.evaluations, "
        "c.topics + k.number AS most FROM counted c CROSS JOIN clusters k "
        "LEFT JOIN about a ON a.batch_id = c.batch_id AND a.accepted_at = c.at "
        "WHERE c.place = 1 AND c.evaluations > k.number + CASE WHEN a.is_tick = 1 THEN c.topics "
        "ELSE least(c.topics, coalesce(a.subjects, 0) + c.samples) END ORDER BY c.at",
        "generation {generation}, batch {batch_id} at {at}: {evaluations} evaluations of fewer topics",
    )

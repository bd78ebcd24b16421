-- How the fleet and the system stood at an instant: one row.
-- version: 1
-- parameter at timestamp: The instant.
-- at timestamp: The instant.
-- last_batch_at timestamp: The newest batch of the job up to then.
-- seconds_since_batch double: How long ago that was.
-- topics bigint: Topics that the job knew.
-- active_segments bigint: Their active segments.
-- topics_held bigint: Topics that a gate held.
-- topics_at_cap bigint: Of these, at `max-segments` though they want to split.
-- topics_without_load bigint: Of these, for a load that is missing or stale.
-- consumers_waiting bigint: Consumers without a segment of their own.
-- decisions_open bigint: Decisions that had not ended.
-- oldest_open_seconds double: How long the oldest of them had been open; null: none was.
-- decisions_last_hour bigint: Decided in the hour before.
-- applied_last_hour bigint: Applied in it.
-- failed_last_hour bigint: Failed or rejected in it.
-- undone_last_hour bigint: Actions that were undone in it by their opposite (view `thrash`).
-- dead_letters_last_hour bigint: Messages and samples that were refused in it.
-- messages_last_hour bigint: Messages that were read in it.
WITH batch AS (
  SELECT max(batch_at) AS last_batch_at FROM batches WHERE batch_at <= $at
), taken AS (
  SELECT sum(messages) AS messages FROM batches WHERE batch_at <= $at AND batch_at > $at - INTERVAL '1 hour'
), layout AS (
  SELECT count(*) AS topics, sum(active_segments) AS active_segments
  FROM layout_spans WHERE valid_from <= $at AND (valid_to IS NULL OR valid_to > $at)
), held AS (
  SELECT count(*) AS held,
         sum(CASE WHEN gate = 'max-segments' THEN 1 ELSE 0 END) AS at_cap,
         sum(CASE WHEN gate IN ('load-missing', 'load-stale') THEN 1 ELSE 0 END) AS without_load
  FROM hold_intervals
  WHERE family = 'autoscale' AND held_from <= $at AND (held_until IS NULL OR held_until > $at)
), waiting AS (
  SELECT sum(waiting) AS waiting
  FROM consumers_waiting WHERE waiting_from <= $at AND (waiting_to IS NULL OR waiting_to > $at)
), open_then AS (
  SELECT count(*) AS decisions, min(decided_at) AS oldest
  FROM decision_outcomes WHERE decided_at <= $at AND (ended_at IS NULL OR ended_at > $at)
), decided AS (
  SELECT count(*) AS decided FROM decisions WHERE decided_at <= $at AND decided_at > $at - INTERVAL '1 hour'
), ended AS (
  SELECT sum(CASE WHEN status = 'applied' THEN 1 ELSE 0 END) AS applied,
         sum(CASE WHEN status IN ('failed', 'rejected') THEN 1 ELSE 0 END) AS failed
  FROM outcomes o WHERE o.at <= $at AND o.at > $at - INTERVAL '1 hour'
), undone AS (
  SELECT count(*) AS undone FROM thrash_since($at - INTERVAL '1 hour') WHERE undone_at <= $at
), refused AS (
  SELECT count(*) AS refused FROM dead_letters WHERE rejected_at <= $at AND rejected_at > $at - INTERVAL '1 hour'
)
SELECT $at AS at, b.last_batch_at, ($micros($at) - $micros(b.last_batch_at)) / 1e6 AS seconds_since_batch,
       l.topics, coalesce(l.active_segments, 0) AS active_segments, h.held AS topics_held,
       CAST(coalesce(h.at_cap, 0) AS BIGINT) AS topics_at_cap,
       CAST(coalesce(h.without_load, 0) AS BIGINT) AS topics_without_load,
       CAST(coalesce(w.waiting, 0) AS BIGINT) AS consumers_waiting,
       p.decisions AS decisions_open,
       ($micros($at) - $micros(p.oldest)) / 1e6 AS oldest_open_seconds,
       d.decided AS decisions_last_hour,
       CAST(coalesce(e.applied, 0) AS BIGINT) AS applied_last_hour,
       CAST(coalesce(e.failed, 0) AS BIGINT) AS failed_last_hour,
       u.undone AS undone_last_hour, r.refused AS dead_letters_last_hour,
       CAST(coalesce(t.messages, 0) AS BIGINT) AS messages_last_hour
FROM batch b CROSS JOIN taken t CROSS JOIN layout l CROSS JOIN held h CROSS JOIN waiting w CROSS JOIN open_then p CROSS JOIN decided d CROSS JOIN ended e
CROSS JOIN undone u CROSS JOIN refused r

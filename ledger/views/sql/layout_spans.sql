-- Layouts of topics without their text, each from the batch that took it in to the next: as the job knew them.
-- version: 1
-- topic string: The topic.
-- life bigint: Which life of its name it is: greater at each creation after a deletion.
-- epoch bigint: Epoch of the layout.
-- cause string: What led to it: `created`, `split`, `merge`, `prune`, `policy`, or `snapshot` (it was not known before).
-- decision_id string: The decision that led to it, if one did and it was said.
-- active_segments bigint: How many segments were active.
-- changed_at timestamp: When it came to be, by the clock of whoever announced it.
-- valid_from timestamp: Time of the batch that took it in.
-- valid_to timestamp: When another one was taken in, or the topic was deleted; null: it is the present one.
-- kafka_partition bigint: Where it was announced.
-- kafka_offset bigint: The message there.
WITH read AS (
  SELECT subject AS topic, cause, at, accepted_at, kafka_partition, kafka_offset, epoch, life, decision_id, active_segments
  FROM events
  WHERE type = 'layout' AND in_columns IS NOT NULL
  UNION ALL
  SELECT subject, cause, at, accepted_at, kafka_partition, kafka_offset,
         CAST($first(body, '"epoch" *: *([0-9]+)') AS BIGINT),
         CAST($first(body, '"topicCreatedAt" *: *([0-9]+)') AS BIGINT),
         $first(body, '"decisionId" *: *"([^"]+)"'),
         CAST($count(body, '"state" *: *"ACTIVE"') AS BIGINT)
  FROM events
  WHERE type = 'layout' AND in_columns IS NULL
), told AS (
  SELECT topic, cause, at, accepted_at, kafka_partition, kafka_offset, epoch,
         coalesce(
           life,
           sum(CASE WHEN cause = 'deleted' THEN 1 ELSE 0 END) OVER (
             PARTITION BY topic ORDER BY accepted_at, kafka_partition, kafka_offset
             ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
           - CASE WHEN cause = 'deleted' THEN 1 ELSE 0 END
         ) AS life,
         CASE WHEN cause = 'deleted' THEN 1 ELSE 0 END AS ends,
         decision_id, active_segments
  FROM read
), ranked AS (
  SELECT *,
         max(epoch) OVER (
           PARTITION BY topic, life, ends ORDER BY accepted_at, kafka_partition, kafka_offset
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS epoch_before
  FROM told
), fresh AS (
  SELECT *,
         lead(accepted_at) OVER (PARTITION BY topic ORDER BY accepted_at, kafka_partition, kafka_offset) AS valid_to
  FROM ranked
  WHERE epoch_before IS NULL OR (epoch > epoch_before AND ends = 0)
)
SELECT topic, CAST(life AS BIGINT) AS life, epoch, cause, decision_id, active_segments, at AS changed_at,
       accepted_at AS valid_from, valid_to, kafka_partition, kafka_offset
FROM fresh
WHERE ends = 0

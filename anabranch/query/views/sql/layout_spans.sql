-- Layouts of topics without their text, each from the batch that took it in to the next: as the job knew them.
-- version: 3
-- topic string: The topic.
-- life bigint: Incarnation of the topic, greater at each creation after a deletion: when it began, milliseconds since 1970; where that was not announced, when the one before was deleted (0: none was).
-- epoch bigint: Epoch of the layout.
-- cause string: What led to it: `created`, `split`, `merge`, `prune`, `policy`, or `snapshot` (it was not known before).
-- decision_id string: The decision that led to it, if one did and it was said.
-- active_segments bigint: How many segments were active.
-- changed_at timestamp: When it came to be, by the clock of whoever announced it.
-- valid_from timestamp: Time of the batch that took it in.
-- valid_to timestamp: When another one was taken in, or the topic was deleted; null: it is the present one.
-- kafka_partition bigint: Where it was announced.
-- kafka_offset bigint: The message there.
-- begun_from timestamp: Loads that were taken in before are of an earlier incarnation; null: there was none.
WITH announced AS (
  SELECT subject AS topic, cause, at, accepted_at, kafka_partition, kafka_offset, epoch, life, decision_id,
         active_segments, 0 AS ends, sender
  FROM events
  WHERE type = 'layout' AND cause <> 'deleted' AND in_columns IS NOT NULL
  UNION ALL
  SELECT subject, cause, at, accepted_at, kafka_partition, kafka_offset,
         CAST($first(body, '"epoch" *: *([0-9]+)') AS BIGINT),
         CAST($first(body, '"topicCreatedAt" *: *([0-9]+)') AS BIGINT),
         $first(body, '"decisionId" *: *"([^"]+)"'),
         CAST($count(body, '"state" *: *"ACTIVE"') AS BIGINT), 0, sender
  FROM events
  WHERE type = 'layout' AND cause <> 'deleted' AND in_columns IS NULL
  UNION ALL
  SELECT topic, 'deleted', ended_at, known_from, kafka_partition, kafka_offset, NULL, life, NULL, NULL, 1, sender
  FROM topic_ends
), ranked AS (
  SELECT *,
         max(CASE WHEN ends = 1 THEN at END) OVER before_it AS ended_before,
         max(CASE WHEN ends = 1 THEN accepted_at END) OVER before_it AS ended_from,
         max(CASE WHEN ends = 1 THEN coalesce(life, $micros(at) / 1000) END) OVER before_it AS life_before,
         max(CASE WHEN ends = 0 THEN life END) OVER before_it AS life_known,
         max(sender) OVER before_it AS sender_before,
         sum(ends) OVER (PARTITION BY topic ORDER BY accepted_at, kafka_partition, kafka_offset, ends DESC
                         ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - ends AS ends_before
  FROM announced
  WINDOW before_it AS (PARTITION BY topic ORDER BY accepted_at, kafka_partition, kafka_offset, ends DESC
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), timely AS (
  -- Without late announcements: of an incarnation that has ended, or of a process that another one has replaced.
  SELECT *,
         max(CASE WHEN ends = 0 THEN life END) OVER (
           PARTITION BY topic, ends_before ORDER BY accepted_at, kafka_partition, kafka_offset, ends DESC
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS life_of_this
  FROM ranked
  WHERE ends = 1
     OR coalesce(sender >= sender_before, true)
        AND CASE WHEN life IS NULL
                 THEN coalesce(at >= ended_before, true) AND coalesce($micros(at) / 1000 >= life_known, true)
                 ELSE coalesce(life > life_before, true) AND coalesce(life >= life_known, true) END
), numbered AS (
  -- An incarnation may follow another whose end nobody has announced.
  SELECT *,
         sum(CASE WHEN life > life_of_this THEN 1 ELSE 0 END) OVER (
           PARTITION BY topic, ends_before ORDER BY accepted_at, kafka_partition, kafka_offset, ends DESC
           ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS begun
  FROM timely
), compared AS (
  SELECT *,
         max(epoch) OVER (
           PARTITION BY topic, ends_before, begun ORDER BY accepted_at, kafka_partition, kafka_offset, ends DESC
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS epoch_before,
         max(CASE WHEN ends = 0 THEN life END) OVER (PARTITION BY topic, ends_before, begun) AS life_said,
         min(accepted_at) OVER (PARTITION BY topic, ends_before, begun) AS first_from
  FROM numbered
), fresh AS (
  SELECT *,
         lead(accepted_at) OVER (PARTITION BY topic ORDER BY accepted_at, kafka_partition, kafka_offset, ends DESC)
           AS valid_to
  FROM compared
  WHERE ends = 1 OR epoch_before IS NULL OR epoch > epoch_before
)
SELECT topic, CAST(coalesce(life_said, $micros(ended_before) / 1000, 0) AS BIGINT) AS life, epoch, cause, decision_id,
       active_segments, at AS changed_at, accepted_at AS valid_from, valid_to, kafka_partition, kafka_offset,
       -- greatest() leaves nulls out.
       greatest(ended_from, CASE WHEN life_said IS NOT NULL THEN least(first_from, $instant(life_said)) END)
         AS begun_from
FROM fresh
WHERE ends = 0

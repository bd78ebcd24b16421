-- Deletions of topics that ended an incarnation of theirs. A deletion announced again, or late (of an earlier
-- incarnation than the known one, or by a replaced process), ends nothing and is left out. Where a layout says a later
-- incarnation than the known one and no deletion was announced, the layout is the end of the known one.
-- version: 3
-- topic string: The topic.
-- life bigint: When the incarnation that ended had begun, milliseconds since 1970; null: it was not announced.
-- ended_at timestamp: When the topic was deleted, or the next incarnation began, by the clock of whoever announced it; at most `known_from`.
-- known_from timestamp: Time of the batch that took the announcement in.
-- kafka_partition bigint: Where it was announced.
-- kafka_offset bigint: The message there.
-- sender bigint: Number of the process that announced the deletion; null: not announced, or ended by a layout.
WITH ended AS (
  SELECT subject FROM events WHERE type = 'layout' GROUP BY subject
  HAVING sum(CASE WHEN cause = 'deleted' THEN 1 ELSE 0 END) > 0 OR max(life) > min(life)
), announced AS (
  SELECT e.subject AS topic, e.cause, least(e.at, e.accepted_at) AS at, e.accepted_at, e.kafka_partition,
         e.kafka_offset, e.sender,
         CASE WHEN e.in_columns IS NOT NULL THEN e.life
              ELSE CAST($first(e.body, '"topicCreatedAt" *: *([0-9]+)') AS BIGINT) END AS life,
         max(e.sender) OVER (PARTITION BY e.subject ORDER BY e.accepted_at, e.kafka_partition, e.kafka_offset
                             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS sender_before
  FROM events e JOIN ended d ON d.subject = e.subject
  WHERE e.type = 'layout'
), ranked AS (
  SELECT *,
         max(CASE WHEN cause = 'deleted' THEN at END) OVER before_it AS ended_before,
         max(CASE WHEN cause = 'deleted' THEN coalesce(life, $micros(at) / 1000) END) OVER before_it AS life_before,
         max(CASE WHEN cause <> 'deleted' THEN life END) OVER before_it AS life_known
  FROM announced
  WHERE coalesce(sender >= sender_before, true)
  WINDOW before_it AS (PARTITION BY topic ORDER BY accepted_at, kafka_partition, kafka_offset
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT topic, life, at AS ended_at, accepted_at AS known_from, kafka_partition, kafka_offset, sender
FROM ranked
WHERE cause = 'deleted'
  AND CASE WHEN life IS NULL
           THEN coalesce(at > ended_before, true) AND coalesce($micros(at) / 1000 >= life_known, true)
           ELSE coalesce(life > life_before, true) AND coalesce(life >= life_known, true) END
UNION ALL
SELECT topic, life_known, least($instant(life), accepted_at), accepted_at, kafka_partition, kafka_offset, NULL
FROM ranked
WHERE cause <> 'deleted' AND life > life_known AND coalesce(life_before < life_known, true)

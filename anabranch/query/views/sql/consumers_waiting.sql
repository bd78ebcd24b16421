-- Consumers without a segment of their own: times at which a STREAM or CHECKPOINT subscription had more consumers than
-- its topic had active segments.
-- version: 3
-- topic string: The topic.
-- subscription string: The subscription.
-- type string: `STREAM` or `CHECKPOINT`: what its newest announcement says.
-- consumers bigint: Its consumers.
-- active_segments bigint: The topic's active segments.
-- waiting bigint: The difference.
-- waiting_from timestamp: Time of the batch that took in the consumer or the layout.
-- waiting_to timestamp: When either changed; null: they still wait.
-- consumer_seconds double: Waiting consumers times seconds; of those who still wait up to the newest batch on record.
WITH counted AS (
  SELECT subject AS topic, subscription, subscription_type AS type, at AS said_at, accepted_at AS at, kafka_partition,
         kafka_offset, consumers, life, sender
  FROM events
  WHERE type = 'consumer' AND in_columns IS NOT NULL
  UNION ALL
  SELECT subject, $unescaped($first(body, '"subscription" *: *"((?:[^"\\]|\\.)*)"')), $first(body, '"type" *: *"([A-Z]+)"'),
         at, accepted_at, kafka_partition, kafka_offset,
         CASE WHEN cause = 'deleted' THEN 0 ELSE CAST($first(body, '"consumers" *: *([0-9]+)') AS BIGINT) END,
         CAST($first(body, '"topicCreatedAt" *: *([0-9]+)') AS BIGINT), sender
  FROM events
  WHERE type = 'consumer' AND in_columns IS NULL
), with_ends AS (
  SELECT topic, subscription, type, said_at, at, 1 AS place, kafka_partition, kafka_offset, consumers, life, sender
  FROM counted
  UNION ALL
  SELECT topic, NULL, NULL, ended_at, known_from, 0, kafka_partition, kafka_offset, NULL, life, sender
  FROM topic_ends
), ranked AS (
  SELECT *,
         max(CASE WHEN place = 0 THEN said_at END) OVER before_it AS ended_before,
         max(CASE WHEN place = 0 THEN coalesce(life, $micros(said_at) / 1000) END) OVER before_it AS life_before,
         max(sender) OVER before_it AS sender_before
  FROM with_ends
  WINDOW before_it AS (PARTITION BY topic ORDER BY at, place, kafka_partition, kafka_offset
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), timely AS (
  -- Without late announcements, as in `layout_spans`.
  SELECT topic, subscription, type, at, kafka_partition, kafka_offset, consumers
  FROM ranked
  WHERE place = 1 AND coalesce(sender >= sender_before, true)
    AND CASE WHEN life IS NULL THEN coalesce(said_at > ended_before, true) ELSE coalesce(life > life_before, true) END
), names AS (
  SELECT topic, subscription FROM timely GROUP BY topic, subscription
  HAVING sum(CASE WHEN type <> 'QUEUE' THEN 1 ELSE 0 END) > 0
), layouts AS (
  SELECT topic, valid_from AS at, 1 AS place, active_segments FROM layout_spans
  WHERE valid_to IS NULL OR valid_to > valid_from
  UNION ALL
  SELECT DISTINCT topic, known_from, 0, NULL FROM topic_ends
), points AS (
  SELECT t.topic, t.subscription, t.type, t.at, 2 AS place, t.kafka_partition, t.kafka_offset, t.consumers,
         CAST(NULL AS BIGINT) AS active_segments
  FROM timely t JOIN names n ON n.topic = t.topic AND n.subscription = t.subscription
  UNION ALL
  SELECT n.topic, n.subscription, NULL, l.at, l.place, 0, 0,
         CASE WHEN l.active_segments IS NULL THEN 0 END, coalesce(l.active_segments, 0)
  FROM names n JOIN layouts l ON l.topic = n.topic
), filled AS (
  SELECT topic, subscription, at,
         last_value(type) IGNORE NULLS OVER up_to_it AS type,
         last_value(consumers) IGNORE NULLS OVER up_to_it AS consumers,
         last_value(active_segments) IGNORE NULLS OVER up_to_it AS active_segments,
         lead(at) OVER (PARTITION BY topic, subscription ORDER BY at, place, kafka_partition, kafka_offset) AS until
  FROM points
  WINDOW up_to_it AS (PARTITION BY topic, subscription ORDER BY at, place, kafka_partition, kafka_offset
                      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), known AS (
  SELECT max(batch_at) AS known_until FROM batches
)
SELECT topic, subscription, type, consumers, active_segments, consumers - active_segments AS waiting,
       at AS waiting_from, until AS waiting_to,
       (consumers - active_segments)
         * greatest(0.0, ($micros(coalesce(until, k.known_until)) - $micros(at)) / 1e6) AS consumer_seconds
FROM filled CROSS JOIN known k
WHERE type <> 'QUEUE' AND consumers > active_segments AND active_segments > 0 AND (until IS NULL OR until > at)

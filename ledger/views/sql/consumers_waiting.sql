-- Consumers without a segment of their own: times at which a STREAM or CHECKPOINT subscription had more consumers than
-- its topic had active segments.
-- version: 1
-- topic string: The topic.
-- subscription string: The subscription.
-- type string: `STREAM` or `CHECKPOINT`.
-- consumers bigint: Its consumers.
-- active_segments bigint: The topic's active segments.
-- waiting bigint: The difference.
-- waiting_from timestamp: Time of the batch that took in the consumer or the layout.
-- waiting_to timestamp: When either changed; null: they still wait.
-- consumer_seconds double: Waiting consumers times seconds; of those who still wait up to the newest batch on record.
WITH counted AS (
  SELECT subject AS topic, subscription, subscription_type AS type, accepted_at AS at, kafka_partition, kafka_offset,
         consumers
  FROM events
  WHERE type = 'consumer' AND in_columns IS NOT NULL
  UNION ALL
  SELECT subject, $first(body, '"subscription" *: *"((?:[^"\\]|\\.)*)"'), $first(body, '"type" *: *"([A-Z]+)"'),
         accepted_at, kafka_partition, kafka_offset,
         CASE WHEN cause = 'deleted' THEN 0 ELSE CAST($first(body, '"consumers" *: *([0-9]+)') AS BIGINT) END
  FROM events
  WHERE type = 'consumer' AND in_columns IS NULL
), managed AS (
  SELECT * FROM counted WHERE type <> 'QUEUE'
), names AS (
  SELECT DISTINCT topic, subscription, type FROM managed
), layouts AS (
  SELECT topic, valid_from AS at, 1 AS place, active_segments FROM layout_spans
  WHERE valid_to IS NULL OR valid_to > valid_from
  UNION ALL
  SELECT DISTINCT subject, accepted_at, 0, NULL FROM events WHERE type = 'layout' AND cause = 'deleted'
), points AS (
  SELECT topic, subscription, type, at, 2 AS place, kafka_partition, kafka_offset, consumers,
         CAST(NULL AS BIGINT) AS active_segments
  FROM managed
  UNION ALL
  SELECT n.topic, n.subscription, n.type, l.at, l.place, 0, 0,
         CASE WHEN l.active_segments IS NULL THEN 0 END, coalesce(l.active_segments, 0)
  FROM names n JOIN layouts l ON l.topic = n.topic
), filled AS (
  SELECT topic, subscription, type, at,
         last_value(consumers) IGNORE NULLS OVER (
           PARTITION BY topic, subscription, type ORDER BY at, place, kafka_partition, kafka_offset
           ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS consumers,
         last_value(active_segments) IGNORE NULLS OVER (
           PARTITION BY topic, subscription, type ORDER BY at, place, kafka_partition, kafka_offset
           ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS active_segments,
         lead(at) OVER (
           PARTITION BY topic, subscription, type ORDER BY at, place, kafka_partition, kafka_offset) AS until
  FROM points
), known AS (
  SELECT max(batch_at) AS known_until FROM batches
)
SELECT topic, subscription, type, consumers, active_segments, consumers - active_segments AS waiting,
       at AS waiting_from, until AS waiting_to,
       (consumers - active_segments)
         * greatest(0.0, ($micros(coalesce(until, k.known_until)) - $micros(at)) / 1e6) AS consumer_seconds
FROM filled CROSS JOIN known k
WHERE consumers > active_segments AND active_segments > 0 AND (until IS NULL OR until > at)
